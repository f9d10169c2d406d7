package floors

// The tiers of lanes. The number in the column lane is a tier plus a priority. A claim takes at most a certain number
// of jobs of each tier of a queue. In all, it takes at most as many jobs as the queue has room for.
const (
	TierFresh   int16 = 0
	TierRetry   int16 = 10
	TierSuspect int16 = 20
	TierStrong  int16 = 30
)
