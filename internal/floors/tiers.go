package floors

// The tiers of lanes. The number in the column lane is a tier plus a priority. In a queue, a claim takes jobs up to a
// limit for each tier, and up to the room of the queue in all.
const (
	TierFresh   int16 = 0
	TierRetry   int16 = 10
	TierSuspect int16 = 20
	TierStrong  int16 = 30
)
