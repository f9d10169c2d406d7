package floors

// The classes of lanes, as in the column lane: each has its own limit, in this order, and shares the queue's.
const (
	TierFresh   int16 = 0
	TierRetry   int16 = 10
	TierSuspect int16 = 20
	TierStrong  int16 = 30
)
