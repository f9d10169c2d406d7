//go:build !droverfail

package engine

// failpoint is where the fault suite ends a process. Only the build tag droverfail gives it a body.
func failpoint(string) {}
