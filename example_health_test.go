package drover_test

import (
	"context"
	"fmt"
)

// Wake somebody where it is critical; all else is for the daily look.
func ExampleClient_Health() {
	client, end := newClient()
	defer end()

	health, err := client.Health(context.Background())
	must(err)
	for _, finding := range health.Findings {
		if finding.Level == "critical" {
			fmt.Println(finding.What, finding.Why, finding.Do)
		}
	}
	fmt.Printf("%s: %.0f %% of the rows are dead\n", health.Tables[0].Name, 100*health.Tables[0].DeadShare())
	// Output:
	// jobs: 0 % of the rows are dead
}
