package main

//go:generate go run github.com/lanebox/lanebox/cmd/lanebox generate
