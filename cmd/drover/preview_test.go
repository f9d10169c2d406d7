package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// T-2: the waits of a strategy, and an outage, as text and as JSON. Neither needs a database.
func TestPreview(t *testing.T) {
	t.Parallel()
	sh := &shell{}
	sh.run(t, "preview").ok(t).says(t, "ATTEMPT  AFTER", "\n2        15s    15s to 18.7s", "\n20       1h")
	sh.run(t, "preview", "--strategy", "constant", "--delay", "1m").ok(t).says(t, "\n20       1m     -            19m                      -")
	sh.run(t, "preview", "--max-attempts", "1").ok(t).says(t, "one attempt, no retry")
	sh.run(t, "preview", "--max-attempts", "unlimited").ok(t).says(t, "\n31       1h", "\n…")
	o := sh.run(t, "preview", "--outage", "1m", "--rate", "5", "--capacity", "8", "--budget", "60", "--redrive", "2").ok(t).says(t,
		"An outage of 1m, 5 jobs a second; it catches 300 jobs. Afterwards the service serves 8 a second.",
		"no budget  ", "budget 60 per 1m  ", "no budget, redrive 2/s  ", "budget 60 per 1m, redrive 2/s  ", "    16 |", "     8 |", "       0 s ")
	for _, line := range strings.Split(o.stdout, "\n") {
		if strings.ContainsAny(line, "\x1b\r") || len([]rune(line)) > 110 {
			t.Errorf("in a pipe: %q", line)
		}
	}

	plain := decode[previewInfo](t, sh.run(t, "preview", "--json").ok(t))
	if plain.Outage != nil || plain.Strategy != "exponential" || plain.MaxAttempts != 20 || len(plain.Schedule) != 19 {
		t.Errorf("%+v", plain)
	}
	first := plain.Schedule[0]
	if first.Attempt != 2 || first.WaitMS != 15_000 || first.LeastWaitMS < 15_000 || first.MostWaitMS > 18_750 || first.MostWaitMS < 18_000 || first.SinceMS != 15_000 || first.MostSinceMS != first.MostWaitMS {
		t.Errorf("%+v", first)
	}
	got := decode[previewInfo](t, sh.run(t, "preview", "--strategy", "constant", "--max-attempts", "3", "--outage", "2m", "--rate", "5", "--jobs", "400", "--json").ok(t))
	r := got.Outage.Results[0]
	if got.Outage.LengthMS != 120_000 || r.Caught != 400 || r.Attempts != 1200 || r.Dead != 300 || r.PeakDown != 15 || r.PeakBack != 5 || r.DiscardedShare != float64(r.Dead)/400 || r.Enqueued != 400 ||
		r.Completed != 100 || r.Discarded != 300 || r.Waiting != 0 || len(r.Load.Seconds) == 0 || r.Load.StepMS == 0 {
		t.Errorf("%+v; want the jobs of the last 20 s to have their third attempt after the outage", r)
	}
}

// Every flag changes something.
func TestPreviewFlags(t *testing.T) {
	t.Parallel()
	sh := &shell{}
	for _, c := range []struct{ base, flag string }{
		{"", "--base 1s"},
		{"", "--multiplier 3"},
		{"", "--max 5m"},
		{"", "--jitter full"},
		{"", "--max-attempts 4"},
		{"", "--retry-for 1h"},
		{"", "--strategy linear"},
		{"--strategy linear", "--step 5s"},
		{"--strategy constant", "--delay 5s"},
		{"--outage 1m --rate 5", "--jobs 100"},
		{"--outage 1m --rate 5", "--capacity 6"},
		{"--outage 1m --rate 5", "--budget 50"},
		{"--outage 1m --rate 5 --budget 50", "--budget-per 2m"},
		{"--outage 1m --rate 5 --budget 50", "--budget-burst 20"},
		{"--outage 1m --rate 5 --budget 50", "--budget-discard"},
		{"--outage 1m --rate 5", "--seed 7"},
		{"--outage 1m --rate 5 --max-attempts 2", "--redrive 5"},
		{"", "--outage 1m --rate 5"},
	} {
		words := append([]string{"preview"}, strings.Fields(c.base)...)
		before := sh.run(t, words...).ok(t).stdout
		if again := sh.run(t, words...).ok(t).stdout; again != before {
			t.Errorf("drover preview %s prints something else the second time", c.base)
		}
		if after := sh.run(t, append(words, strings.Fields(c.flag)...)...).ok(t).stdout; after == before {
			t.Errorf("drover preview %s: %s changes nothing", c.base, c.flag)
		}
	}
}

// T-2: preview refuses what the library refuses, in its words but for the names of the flags, and before it computes.
func TestPreviewRefuses(t *testing.T) {
	t.Parallel()
	sh := &shell{}
	for line, texts := range map[string][]string{
		"--base -1s --multiplier 0.5 --max -1m --jitter up:2 --max-attempts -3 --retry-for 1us": {
			"--base: -1s is negative", "--multiplier: 0.5 is not a finite number of at least 1", "--max: -1m0s is negative",
			`--jitter: "up:2" needs a share from 0 to 1`, "--max-attempts: -3 is negative; 1 means never retry", "--retry-for: 1µs is under 1ms",
		},
		"--strategy linear --step -1s":    {"--step: -1s is negative"},
		"--strategy constant --delay -1s": {"--delay: -1s is negative"},
		"--strategy linear --base 1s":     {"--base is a setting of the strategy exponential, and this is linear"},
		"--strategy custom":               {`"custom" is none of exponential, linear, constant`},
		"--base 0":                        {"--base is 0: leave it out for the default"},
		"--base many":                     {"--base", "many"},
		"--jitter=":                       {"--jitter is empty"},
		"--max-attempts 0":                {`--max-attempts "0" is not a number of at least 1, or unlimited`},
		"--max-attempts 3000000000":       {"--max-attempts: 3000000000 is more than 2147483647"},
		"--outage 1m":                     {"--outage needs --rate"},
		"--rate 5":                        {"--rate is for an outage: give its length with --outage"},
		"--budget-discard":                {"--budget-discard is for an outage"},
		"--outage 1m --rate -5 --jobs -1 --capacity -2":    {"--rate: -5 is not", "--jobs: -1 is not", "--capacity: -2 is not"},
		"--outage 1m --rate NaN":                           {"--rate: NaN is not"},
		"--outage 800h --rate 5":                           {"--outage: 800h0m0s is not 1 ms to 30 days"},
		"--outage 1m --rate 5 --capacity 5":                {"--capacity: 5 a second is not more than the 5 new jobs a second"},
		"--outage 1m --rate 5 --budget -1":                 {"--budget: -1 is not 1 to 1,000,000"},
		"--outage 1m --rate 5 --budget-per 25h":            {"--budget-per: 25h0m0s is not 1 ms to 24 h"},
		"--outage 1m --rate 5 --budget 5 --budget-burst 6": {"--budget-burst: 6 is not 1 to"},
		"--outage 1h --rate 1000":                          {"too large: 3600000 jobs, at most 1000000", "try a tenth of --rate"},
		"5":                                                {"usage: drover preview"},
	} {
		o := sh.run(t, append([]string{"preview"}, strings.Fields(line)...)...).ends(t, 2, texts...)
		if o.stdout != "" {
			t.Errorf("drover preview %s: %q on stdout", line, o.stdout)
		}
	}

	migrated, _ := newMigratedShell(t)
	theirs := migrated.run(t, "redrive", "start", "--all", "--rate", "9999").ends(t, 2).stderr
	ours := sh.run(t, "preview", "--outage", "1m", "--rate", "5", "--redrive", "9999").ends(t, 2).stderr
	if strings.Replace(ours, "--redrive:", "--rate:", 1) != theirs {
		t.Errorf("got %q, a redrive is refused with %q", ours, theirs)
	}
}

// What the documents show of preview is what it prints.
func TestPreviewOfTheDocuments(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?s)\n```\n\\$ drover (preview[^\n]*)\n(.*?)```\n").FindAllStringSubmatch(string(raw), -1) {
			shown++
			if got := (&shell{}).run(t, strings.Fields(block[1])...).ok(t).stdout; got != block[2] {
				t.Errorf("%s: drover %s prints\n%s", file, block[1], got)
			}
		}
	}
	if shown < 2 {
		t.Errorf("%d blocks", shown)
	}
}
