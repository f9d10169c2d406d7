//go:build !linux

package pgdev

func Memory() string { return "" }
