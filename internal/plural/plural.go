// Package plural formats a number with its noun.
package plural

import "fmt"

// Of returns the number and the noun in the right form: "1 job", "3 jobs".
func Of[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
