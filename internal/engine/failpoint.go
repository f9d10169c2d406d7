//go:build !droverfail

package engine

// failpoint marks a place where the fault suite may end the process. It does nothing, except with the build tag
// droverfail.
func failpoint(string) {}
