// Package reference holds the schema that uses every feature. Its generated
// stores face the conformance suite, and its tests kill processes.
package reference

//go:generate go run github.com/lanebox/lanebox/cmd/lanebox generate
