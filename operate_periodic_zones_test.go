package drover

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// dstCase is a row of testdata/dst.json: the ticks of a schedule around a change of a zone's clocks.
type dstCase struct {
	What     string      `json:"what"`
	Zone     string      `json:"zone"`
	Schedule string      `json:"schedule"`
	After    time.Time   `json:"after"`
	Ticks    []time.Time `json:"ticks"`
}

// wallClock finds ticks without any of the code under test and without the server's zones. It walks from minute to minute,
// or from second to second if the schedule has six fields, and reads each zone's clock on the wall with Go's package time.
func wallClock(t testing.TB, schedule, zone string, after time.Time, n int) (ticks []time.Time) {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(schedule)
	set := func(field string, least, most int) map[int]bool {
		found := map[int]bool{}
		for part := range strings.SplitSeq(field, ",") {
			span, step, _ := strings.Cut(part, "/")
			lo, hi, isRange := strings.Cut(span, "-")
			from, to, by := least, most, 1
			if span != "*" {
				from, _ = strconv.Atoi(lo)
				if to = from; isRange {
					to, _ = strconv.Atoi(hi)
				}
			}
			if step != "" {
				by, _ = strconv.Atoi(step)
			}
			for ; from <= to; from += by {
				found[from] = true
			}
		}
		return found
	}
	step, seconds := time.Minute, map[int]bool{0: true}
	if len(fields) == 6 {
		step, seconds, fields = time.Second, set(fields[0], 0, 59), fields[1:]
	}
	minutes, hours := set(fields[0], 0, 59), set(fields[1], 0, 23)
	days, months, weekdays := set(fields[2], 1, 31), set(fields[3], 1, 12), set(fields[4], 0, 7)
	weekdays[0] = weekdays[0] || weekdays[7]
	either := fields[2][0] != '*' && fields[4][0] != '*'
	matches := func(wall time.Time) bool { // except the second. Its fields show the clock on the wall, its zone does not
		day, weekday := days[wall.Day()], weekdays[int(wall.Weekday())]
		return minutes[wall.Minute()] && hours[wall.Hour()] && months[int(wall.Month())] && (day && weekday || either && (day || weekday))
	}
	onTheWall := func(at time.Time) time.Time {
		l := at.In(loc)
		return time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), l.Second(), 0, time.UTC)
	}
	begin := after.Truncate(time.Minute)
	latest := onTheWall(begin.Add(-26 * time.Hour)) // that the wall has shown
	for at := begin.Add(-26 * time.Hour); at.Before(begin); at = at.Add(time.Minute) {
		if wall := onTheWall(at); wall.After(latest) {
			latest = wall
		}
	}
	latest = latest.Add(time.Minute - step)
	for at := begin; len(ticks) < n; at = at.Add(step) {
		wall, tick := onTheWall(at), false
		switch {
		case at.Second() == 0 && wall.Sub(latest) == step && !matches(wall): // no second of this minute; clocks change between minutes
			latest, at = wall.Add(time.Minute-step), at.Add(time.Minute-step)
			continue
		case wall.After(latest):
			for missing := latest.Add(step); !missing.After(wall); missing = missing.Add(step) {
				tick = tick || seconds[missing.Second()] && matches(missing) // more than one where clocks were put forward
			}
			latest = wall
		default: // it was shown before
			tick = len(hours) == 24 && seconds[wall.Second()] && matches(wall)
		}
		if tick && at.After(after) {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

func TestPeriodicTableOfZones(t *testing.T) {
	t.Parallel()
	const file = "testdata/dst.json"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var table []dstCase
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	db := newTestDB(t)
	zones := map[string]bool{}
	for i, c := range table {
		zones[c.Zone] = true
		walked := wallClock(t, c.Schedule, c.Zone, c.After, len(c.Ticks))
		if *update {
			table[i].Ticks = walked
			continue
		}
		if !slices.EqualFunc(walked, c.Ticks, time.Time.Equal) {
			t.Errorf("%s: the table has %v, a walk from minute to minute %v", c.What, c.Ticks, walked)
		}
		got, err := readTicks(t, db, c.Schedule, c.Zone, c.After, len(c.Ticks))
		if err != nil || !slices.EqualFunc(got, c.Ticks, time.Time.Equal) {
			t.Errorf("%s: %s in %s: %v, want %v (%v)", c.What, c.Schedule, c.Zone, got, c.Ticks, err)
		}
	}
	if len(table) < 15 || len(zones) < 5 {
		t.Errorf("%d rows of %d zones", len(table), len(zones))
	}
	if *update {
		raw, err := json.MarshalIndent(table, "", "\t")
		if err == nil {
			err = os.WriteFile(file, append(raw, '\n'), 0o644)
		}
		t.Fatalf("%s is written anew: %v", file, err)
	}
}

func readTicks(t testing.TB, db *testDB, schedule, zone string, after time.Time, n int) (ticks []time.Time, err error) {
	t.Helper()
	err = db.QueryRow(t.Context(), `select drover_periodic_ticks($1, $2, $3, $3, $4)`, schedule, zone, after, n).Scan(&ticks)
	for i := range ticks {
		ticks[i] = ticks[i].UTC()
	}
	return ticks, err
}

// Any schedule, in any of these zones, around their changes: the database finds what a walk along the clock on the wall does.
func TestPeriodicTicksAreThoseOfTheWallClock(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	rng := rand.New(rand.NewPCG(1, 18)) //nolint:gosec // the same each time
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	field := func(least, most int) string {
		lo := least + rng.IntN(most-least+1)
		hi := lo + rng.IntN(most-lo+1)
		return pick("*", "*", fmt.Sprintf("*/%d", 1+rng.IntN(30)), fmt.Sprint(lo), fmt.Sprintf("%d-%d", lo, hi), fmt.Sprintf("%d,%d", hi, lo),
			fmt.Sprintf("%d-%d/%d", lo, hi, 1+rng.IntN(7)))
	}
	around := []struct{ zone, at string }{
		{"Europe/Berlin", "2025-03-30T01:00:00Z"},
		{"Europe/Berlin", "2025-10-26T01:00:00Z"},
		{"America/New_York", "2025-03-09T07:00:00Z"},
		{"America/New_York", "2025-11-02T06:00:00Z"},
		{"Australia/Lord_Howe", "2025-04-05T15:00:00Z"},
		{"Australia/Lord_Howe", "2025-10-04T15:30:00Z"},
		{"Africa/Casablanca", "2024-03-10T02:00:00Z"},
		{"Africa/Casablanca", "2024-04-14T02:00:00Z"},
		{"Asia/Kolkata", "2025-03-30T01:00:00Z"},
		{"Asia/Beirut", "2022-10-29T21:00:00Z"},
		{"America/Havana", "2025-03-09T05:00:00Z"},
		{"America/St_Johns", "2010-11-07T02:31:00Z"},
		{"Pacific/Apia", "2011-12-30T10:00:00Z"},
		{"UTC", "2024-02-29T00:00:00Z"},
	}
	for range sizeOf(t, "DROVER_CRON_CASES", 200) {
		schedule := strings.Join([]string{
			field(0, 59), field(0, 23), pick("*", "*", "1-7", "*/2", "26-31"), "*", pick("*", "*", "0", "6,7", "*/2"),
		}, " ")
		if rng.IntN(10) == 0 { // such a walk is sixty times as long
			schedule = strings.Join([]string{field(0, 59), field(0, 59), field(0, 23), "* * *"}, " ")
		}
		c := around[rng.IntN(len(around))]
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		after := at.Add(time.Duration(rng.IntN(29*3600)-26*3600) * time.Second)
		got, err := readTicks(t, db, schedule, c.zone, after, 5)
		if want := wallClock(t, schedule, c.zone, after, 5); err != nil || !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("%s in %s after %v: %v, %v, want %v", schedule, c.zone, after, got, err, want)
		}
	}
}
