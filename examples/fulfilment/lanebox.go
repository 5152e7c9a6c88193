package main

//go:generate go run github.com/lanebox/lanebox/cmd/lanebox generate orders/lanebox.yaml
//go:generate go run github.com/lanebox/lanebox/cmd/lanebox generate warehouse/lanebox.yaml
