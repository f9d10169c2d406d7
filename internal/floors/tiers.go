package floors

// The tiers of lanes, as in the column lane. A claim takes jobs up to a limit for each tier, and up to the room
// of the queue in all.
const (
	TierFresh   int16 = 0
	TierRetry   int16 = 10
	TierSuspect int16 = 20
	TierStrong  int16 = 30
)
