// Package testdata holds the deliveries of drover demo, for commands that were installed without the sources. The
// other files of this folder belong to tests.
package testdata

import _ "embed" // go:embed needs it

// Webhooks is webhooks.jsonl: one delivery a line, as drover demo --file reads them.
//
//go:embed webhooks.jsonl
var Webhooks []byte
