package drover_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// Report is the job of a schedule.
type Report struct{}

func (Report) Kind() string { return "report" }

// Schedules are declared where the workers are: a report every night, and a pulse every second.
func ExamplePeriodic() {
	pool, end := migratedPool()
	defer end()
	client := clientOf(pool)
	ctx, stop := context.WithCancel(context.Background())
	report := func(_ context.Context, job *drover.Job, _ Report) error {
		run, ok := job.Periodic() // which schedule made the job, and for which time
		fmt.Println(run.Name, ok, time.Since(run.Tick) < time.Minute)
		stop()
		return nil
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "default"}},
		Workers: []drover.Worker{drover.Handle(report, drover.WorkerOpts{})},
		Periodic: []drover.Periodic{
			{Name: "nightly", Schedule: "30 2 * * *", Zone: "Europe/Berlin", Args: Report{}, CatchUp: drover.CatchUpOnce},
			{Name: "pulse", Schedule: "@every 1s", Args: Report{}, Overlap: drover.OverlapSkip, Opts: &drover.EnqueueOpts{MaxAttempts: 3}},
		},
	})
	must(err)
	must(sup.Run(ctx))

	schedules, err := client.PeriodicJobs(context.Background())
	must(err)
	for _, s := range schedules {
		fmt.Println(s.Name, s.Schedule, s.Zone, s.State) // they tick while a supervisor declares them
	}
	// Output:
	// pulse true true
	// nightly 30 2 * * * Europe/Berlin undeclared
	// pulse @every 1s UTC undeclared
}

// A schedule that a customer chooses is made at run time. It stays until it is deleted.
func ExampleClient_SetPeriodic() {
	pool, end := migratedPool()
	defer end()
	ctx, client := context.Background(), clientOf(pool)
	support := drover.Audit{By: "support", Why: "ticket 4711"}

	schedule, zone := "0 9 * * mon-fri", "America/New_York"
	ticks, err := client.PreviewPeriodic(ctx, schedule, zone, 3)
	must(err)
	fmt.Println("the next", len(ticks), "times can be shown before it is stored")

	must(client.SetPeriodic(ctx, drover.Periodic{
		Name: "report/customer-7", Schedule: schedule, Zone: zone, Args: Report{}, Jitter: 5 * time.Minute,
		Opts: &drover.EnqueueOpts{Key: "customer-7"},
	}, support))
	must(client.PausePeriodic(ctx, "report/customer-7", time.Time{}, support))
	j, err := client.PeriodicJob(ctx, "report/customer-7")
	must(err)
	fmt.Println(j.State, "by", j.UpdatedBy, "because of", j.UpdatedWhy)
	must(client.ResumePeriodic(ctx, "report/customer-7", support))

	id, err := client.RunPeriodic(ctx, "report/customer-7", nil, support) // one now, besides its own times
	must(err)
	fmt.Println("a job now:", len(id) == 26)

	err = client.SetPeriodic(ctx, drover.Periodic{Name: "never", Schedule: "0 0 31 2 *", Args: Report{}}, support)
	fmt.Println(err)
	must(client.DeletePeriodic(ctx, "report/customer-7", support))
	// Output:
	// the next 3 times can be shown before it is stored
	// paused by support because of ticket 4711
	// a job now: true
	// set schedule "never": drover: Schedule: '0 0 31 2 *' never comes
}

// periodicClient has one schedule, "invoices".
func periodicClient() (*drover.Client, func()) {
	pool, end := migratedPool()
	client := clientOf(pool)
	must(client.SetPeriodic(context.Background(), drover.Periodic{Name: "invoices", Schedule: "@daily", Args: Report{}, Overlap: drover.OverlapSkip}, drover.Audit{}))
	return client, end
}

// A handler learns the time that its run is for. It may be earlier than now: a job waits for a slot, or for its retry.
func ExampleJob_Periodic() {
	day := func(_ context.Context, job *drover.Job, _ Parcel) error {
		run, ok := job.Periodic()
		if !ok {
			fmt.Println("enqueued by hand")
			return nil
		}
		fmt.Println("the day before", run.Tick)
		return nil
	}
	afterOneRun(drover.Handle(day, drover.WorkerOpts{}), Parcel{Number: 7})
	// Output: enqueued by hand
}

// For an operator's page.
func ExampleClient_PeriodicJobs() {
	client, end := periodicClient()
	defer end()
	list, err := client.PeriodicJobs(context.Background())
	must(err)
	for _, s := range list {
		fmt.Println(s.Name, s.Kind, s.Schedule, s.State, len(s.Next), "next times")
	}
	// Output: invoices report @daily active 10 next times
}

func ExampleClient_PeriodicJob() {
	client, end := periodicClient()
	defer end()
	s, err := client.PeriodicJob(context.Background(), "invoices")
	must(err)
	fmt.Println(s.Schedule, s.Zone, s.Next[1].Sub(s.Next[0]))
	_, err = client.PeriodicJob(context.Background(), "invoice")
	fmt.Println(err)
	// Output:
	// @daily UTC 24h0m0s
	// get schedule "invoice": drover: not found
}

// Show a customer when a schedule will tick, before it is stored.
func ExampleClient_PreviewPeriodic() {
	client, end := periodicClient()
	defer end()
	ticks, err := client.PreviewPeriodic(context.Background(), "0 9 * * mon", "Europe/Berlin", 2)
	must(err)
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(err)
	for _, at := range ticks {
		fmt.Println(at.In(berlin).Format("Monday 15:04"))
	}
	// Output:
	// Monday 09:00
	// Monday 09:00
}

// No invoices while the prices are corrected.
func ExampleClient_PausePeriodic() {
	client, end := periodicClient()
	defer end()
	ctx, by := context.Background(), drover.Audit{By: "operator", Why: "prices are being corrected"}
	must(client.PausePeriodic(ctx, "invoices", time.Now().Add(48*time.Hour), by))
	s, err := client.PeriodicJob(ctx, "invoices")
	must(err)
	fmt.Println(s.State, s.UpdatedBy, s.UpdatedWhy, s.PausedUntil != nil)
	// Output: paused operator prices are being corrected true
}

func ExampleClient_ResumePeriodic() {
	client, end := periodicClient()
	defer end()
	ctx, by := context.Background(), drover.Audit{By: "operator"}
	must(client.PausePeriodic(ctx, "invoices", time.Time{}, by)) // until it is resumed
	must(client.ResumePeriodic(ctx, "invoices", by))
	s, err := client.PeriodicJob(ctx, "invoices")
	must(err)
	fmt.Println(s.State, len(s.Next))
	// Output: active 10
}

// One run now, besides the runs of the schedule. With OverlapSkip there is no second one before it has ended.
func ExampleClient_RunPeriodic() {
	client, end := periodicClient()
	defer end()
	ctx, by := context.Background(), drover.Audit{By: "operator", Why: "a customer asked"}
	id, err := client.RunPeriodic(ctx, "invoices", nil, by)
	must(err)
	job, err := client.Job(ctx, id)
	must(err)
	fmt.Println(job.Kind, job.State)
	_, err = client.RunPeriodic(ctx, "invoices", nil, by)
	fmt.Println(errors.Is(err, drover.ErrState))
	// Output:
	// report available
	// true
}

// A deleted schedule stops immediately. Its jobs stay.
func ExampleClient_DeletePeriodic() {
	client, end := periodicClient()
	defer end()
	ctx := context.Background()
	must(client.DeletePeriodic(ctx, "invoices", drover.Audit{By: "operator"}))
	list, err := client.PeriodicJobs(ctx)
	must(err)
	fmt.Println(len(list))
	// Output: 0
}
