package sqlqueue

import "github.com/lanebox/lanebox/runtime/lane"

// deadLettersPage is the number of dead letters read at once.
const deadLettersPage = 500

// DeadLetters reads all dead letters of a scope, page by page. list returns at
// most most of them whose sequence is above after, in the order of their sequence.
func DeadLetters(list func(after int64, most int) ([]lane.DeadLetter, error)) ([]lane.DeadLetter, error) {
	var letters []lane.DeadLetter
	for after := int64(0); ; after = letters[len(letters)-1].Message.Sequence {
		page, err := list(after, deadLettersPage)
		if err != nil {
			return nil, err
		}
		letters = append(letters, page...)
		if len(page) < deadLettersPage {
			return letters, nil
		}
	}
}
