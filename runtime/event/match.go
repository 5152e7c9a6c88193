package event

// MatchTopic reports whether topic matches pattern, in which each * stands for
// any number of characters, dots included. Everything else stands for itself.
func MatchTopic(pattern, topic string) bool {
	// star and seen remember the last * and what it has swallowed so far: on a
	// mismatch it swallows one byte more.
	p, t, star, seen := 0, 0, -1, 0
	for t < len(topic) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, seen = p, t
			p++
		case p < len(pattern) && pattern[p] == topic[t]:
			p++
			t++
		case star >= 0:
			seen++
			p, t = star+1, seen
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// MatchAnyTopic reports whether topic matches one of the patterns.
func MatchAnyTopic(topic string, patterns ...string) bool {
	for _, p := range patterns {
		if MatchTopic(p, topic) {
			return true
		}
	}
	return false
}
