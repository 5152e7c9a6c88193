package diag

import (
	"fmt"
	"slices"
	"strings"
)

// Suggest returns the candidate that word was probably meant to be, or "".
func Suggest(word string, candidates []string) string {
	if len(word) > 200 {
		return ""
	}
	best, bestDistance := "", 0
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if c == word || len(c) > 200 {
			continue
		}
		d := distance(fold(word), fold(c))
		if limit := max(1, len([]rune(c))/3); d > limit {
			continue
		}
		if best == "" || d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// DidYouMean returns the hint for word, or "" if no candidate is near.
func DidYouMean(word string, candidates []string) string {
	if s := Suggest(word, candidates); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return ""
}

// OneOf lists what is possible, as a hint. The near candidate comes first, if
// there is one.
func OneOf(word string, candidates []string) string {
	if hint := DidYouMean(word, candidates); hint != "" {
		return hint
	}
	return "use " + Or(candidates)
}

// Or joins words as "a, b or c".
func Or(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// fold makes spellings of one name alike: order_id, orderId, OrderID.
func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
}

// distance is the number of inserted, removed, changed and swapped runes.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}
