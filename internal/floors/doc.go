// Package floors keeps what a supervisor knows of its lanes: where a claim begins to read, how far near sweeps look
// back, and whether a sleeping supervisor may miss a job. It only computes: it reads no clock and sends nothing. Its
// types are safe for concurrent use, except Missed.
//
// # The files
//
//   - floors.go: Floors, Lane, Floor: one floor for each lane: the place where claims begin to read
//   - near.go: Near, Sweep: plans the near sweeps, which look behind the floors for jobs that were committed late
//   - missed.go: Missed: whether a sleeping supervisor may miss a job, and so polls often
//   - tiers.go: TierStrong and the numbers of the other tiers of lanes
package floors
