package sqlqueue

import (
	"errors"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/lane"
)

func TestDeadLettersReadsEveryPage(t *testing.T) {
	for _, total := range []int{0, 1, deadLettersPage, 2*deadLettersPage + 1} {
		letters, err := DeadLetters(func(after int64, most int) (page []lane.DeadLetter, err error) {
			for s := after + 1; s <= int64(total) && len(page) < most; s++ {
				page = append(page, lane.DeadLetter{Message: event.Message{Sequence: s}})
			}
			return page, nil
		})
		if err != nil || len(letters) != total {
			t.Fatalf("%d of %d dead letters, %v", len(letters), total, err)
		}
		for i, l := range letters {
			if l.Message.Sequence != int64(i+1) {
				t.Fatalf("dead letter %d has the sequence %d", i, l.Message.Sequence)
			}
		}
	}
}

func TestDeadLettersReportsAPageThatFails(t *testing.T) {
	failed := errors.New("no answer")
	calls := 0
	letters, err := DeadLetters(func(int64, int) ([]lane.DeadLetter, error) {
		if calls++; calls == 2 {
			return nil, failed
		}
		return make([]lane.DeadLetter, deadLettersPage), nil
	})
	if !errors.Is(err, failed) || letters != nil {
		t.Errorf("got %d dead letters, %v", len(letters), err)
	}
}
