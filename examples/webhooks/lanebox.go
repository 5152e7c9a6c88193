package main

//go:generate go run github.com/lanebox/lanebox/cmd/lanebox generate hub/lanebox.yaml
//go:generate go run github.com/lanebox/lanebox/cmd/lanebox generate audit/lanebox.yaml
