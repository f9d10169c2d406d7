package main

func networkScenarios() []scenario { return nil }
