//! Real jobs of several workers: values of every collective, losses and arrivals, the driver in this process.
mod support;

use std::collections::HashMap;
use std::io::{self, Write};
use std::process::Command;
use std::sync::{mpsc, Arc, Mutex};
use std::time::Duration;

use hvd::driver::{self, Driver, Exits, Failed, Format, Host, Launch, Launcher, Phase};
use hvd::{
    elastic, Call, Context, Error, Fields, Kinds, Object, Options, ProcessSet, SetRule, Shard, State, Status,
};
use hvd::{Variables, View, ViewMut};
use support::{kill, role, value, Job, OPTIONS, WORKER};

/// What this program does as a worker; as a test it does nothing.
#[test]
fn worker() {
    match role().as_deref() {
        Some("elastic") => train(),
        Some("collectives") => collectives(),
        Some("failures") => failures(),
        Some("once") => once(),
        Some("lost") => lost(false),
        Some("lost_and_replaced") => lost(true),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[derive(Default)]
struct History(Vec<i64>);

impl Object for History {
    fn save(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.0.iter().try_for_each(|step| out.write_all(&step.to_le_bytes()))
    }
    fn load(&mut self, data: &[u8]) -> io::Result<()> {
        let words = data.chunks_exact(8);
        self.0 = words.map(|word| i64::from_le_bytes(word.try_into().unwrap())).collect();
        Ok(())
    }
}

struct Training {
    weights: Vec<f32>,
    step: i64,
    history: History,
}

impl Variables for Training {
    fn variables<'a>(&'a mut self, fields: &mut Fields<'a>) {
        fields.tensor("weights", &mut self.weights);
        fields.value("step", &mut self.step);
        fields.object("history", &mut self.history);
    }
}

/// Trains until the test opens the gate "stop": all stop at the same step, as they sum up who has seen it.
fn train() {
    let c = Context::new().unwrap();
    let events = c.events(Kinds::ALL).unwrap();
    let value = Training { weights: vec![0.0; 1000], step: 0, history: History::default() };
    let mut state = State::new(&c, value).unwrap();
    // Newcomers do not run it: no place for collectives.
    state.on_reset(|value, c| {
        println!("reset step {} size {}", value.step, c.size()?);
        Ok(())
    });
    let directory = support::test_directory();
    elastic::run(&mut state, |state| -> hvd::Result<()> {
        let place = c.membership()?;
        println!(
            "train rank {} size {} step {} pid {}",
            place.rank,
            place.size,
            state.step,
            std::process::id()
        );
        loop {
            let mut gradient = vec![1.0f32; state.weights.len()];
            let mut stop = [i32::from(directory.join("stop").exists())];
            c.scope(|s| {
                let stopped = s.allreduce_in_place(Call::named("stop").max(), &mut stop)?;
                s.allreduce_in_place(Call::named("gradient").average(), &mut gradient)?.wait()?;
                stopped.wait()
            })?;
            if stop[0] != 0 {
                return Ok(());
            }
            for (w, g) in state.weights.iter_mut().zip(&gradient) {
                *w += g;
            }
            state.step += 1;
            let step = state.step;
            state.history.0.push(step);
            if place.rank == 0 && step % 10 == 0 {
                println!("at step {step} size {}", place.size);
            }
            state.commit()?;
        }
    })
    .unwrap();
    assert!(state.weights.iter().all(|&w| w == state.step as f32), "{} {}", state.weights[0], state.step);
    assert_eq!(state.history.0, (1..=state.step).collect::<Vec<_>>());
    let recoveries = c.recoveries().unwrap();
    let mut recovered = 0;
    while let Some(event) = events.try_next() {
        recovered += usize::from(event.kind == hvd::EventKind::Recovered);
    }
    // Events come from a thread of their own: the newest may still be on its way.
    assert!(recovered <= recoveries.len());
    println!("done step {} recoveries {}", state.step, recoveries.len());
    c.shutdown(None).unwrap();
}

#[test]
fn a_job_survives_a_killed_worker_and_takes_a_new_one_in() {
    let mut job = Job::start("elastic", "localhost:3", &["-np", "3", "--min-np", "2", "--max-np", "4"]);
    let victim = job.wait("rank 1", |l| value(l, "rank") == Some(1) && value(l, "pid").is_some());
    job.wait("ten steps", |l| l.contains("at step"));
    kill(value(&victim, "pid").unwrap());
    job.wait("survivors", |l| l.contains("reset") && value(l, "step") > Some(0));
    job.wait("a replacement", |l| l.contains("at step") && value(l, "size") == Some(3));
    job.set_hosts("localhost:4");
    job.wait("a fourth worker", |l| l.contains("at step") && value(l, "size") == Some(4));
    job.open("stop");
    job.finish();
    let done: Vec<_> = job.seen.iter().filter(|l| l.contains("done step")).collect();
    assert_eq!(done.len(), 4, "{done:?}");
    let steps: Vec<_> = done.iter().map(|l| value(l, "step")).collect();
    assert!(steps.iter().all(|s| *s == steps[0]), "{done:?}");
    assert!(done.iter().any(|l| value(l, "recoveries") >= Some(2)), "{done:?}");
}

/// Values of every collective, which depend on the rank.
fn collectives() {
    let c = Context::new().unwrap();
    let (rank, size) = (c.rank().unwrap(), c.size().unwrap());
    let (r, n) = (rank as i64, size as i64);
    let sum: i64 = (0..n).sum();
    let mut out = [0i64; 2];
    c.allreduce("sum", &[r, r + 1], &mut out).unwrap();
    assert_eq!(out, [sum, sum + n]);
    for (call, expected) in [
        (Call::named("x").min(), 1),
        (Call::named("x").max(), n),
        (Call::named("x").average(), (sum + n) / n),
        (Call::named("x").product(), (1..=n).product()),
        (Call::named("x").prescale(2.0).priority(5).timeout(Duration::from_secs(30)), 2 * (sum + n)),
    ] {
        let mut x = [r + 1];
        c.allreduce_in_place(call, &mut x).unwrap();
        assert_eq!(x[0], expected, "{call:?}");
    }
    let (mut a, mut b) = ([r], [r as f32, 0.5]);
    c.grouped_allreduce_in_place("group", [ViewMut::from(&mut a), ViewMut::from(&mut b)]).unwrap();
    assert_eq!((a[0], b), (sum, [sum as f32, 0.5 * n as f32]));
    let mut large = vec![1.0f32; 1 << 20];
    c.allreduce_in_place("large", &mut large).unwrap();
    assert!(large.iter().all(|&x| x == n as f32));
    let mut tensor = [r; 3];
    c.broadcast("broadcast", &mut tensor, size - 1).unwrap();
    assert_eq!(tensor, [n - 1; 3]);
    let mut object = vec![7; if rank == 1 { 1000 } else { 3 }];
    c.broadcast_object("object", &mut object, 1).unwrap();
    assert_eq!(object.len(), 1000);
    // Rank r gives r + 1 rows.
    let rows = vec![r as f64; 2 * (rank as usize + 1)];
    let rows = View::new(&rows, &[rank as usize + 1, 2]).unwrap();
    let gathered = c.allgather("gather", rows).unwrap();
    let expected: Vec<f64> = (0..n).flat_map(|r| vec![r as f64; 2 * (r as usize + 1)]).collect();
    assert_eq!(
        (gathered.shape(), gathered.to_vec::<f64>().unwrap()),
        (vec![expected.len() / 2, 2], expected)
    );
    let groups = c.grouped_allgather("gathers", [rows, View::from(&[r])]).unwrap();
    assert_eq!(groups[1].to_vec::<i64>().unwrap(), (0..n).collect::<Vec<_>>());
    let share = c.reducescatter("scatter", &vec![1i32; size as usize * 2]).unwrap();
    assert_eq!(share.to_vec::<i32>().unwrap(), [size; 2]);
    let exchange = c.alltoall("exchange", &vec![r; size as usize]).unwrap();
    assert_eq!(exchange.output.to_vec::<i64>().unwrap(), (0..n).collect::<Vec<_>>());
    assert_eq!(exchange.received, vec![1; size as usize]);
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mine, mut letter) = ([r, 7], [0i64; 2]);
    c.scope(|s| {
        let sent = s.send("letter", &mine, to)?;
        s.receive("letter", &mut letter, from)?.wait()?;
        sent.wait()
    })
    .unwrap();
    assert_eq!(letter, [i64::from(from), 7]);
    let mut only_there = [-1i64];
    c.reduce("reduce", &[r], &mut only_there, size - 1).unwrap();
    assert_eq!(only_there[0], if rank == size - 1 { sum } else { -1 });
    let objects = c.allgather_object("objects", &vec![3; rank as usize]).unwrap();
    assert!(objects.iter().enumerate().all(|(i, object)| object.len() == i));
    c.barrier("barrier").unwrap();
    // A set of the first two ranks, and one of this host's.
    let pair = ProcessSet::new(&c, "pair", &[0, 1], SetRule::Ranks).unwrap();
    let host = ProcessSet::new(&c, "host", &[], SetRule::Local).unwrap();
    assert_eq!((pair.ranks().unwrap(), host.info().unwrap().size), (vec![0, 1], size));
    let mut x = [1i64];
    if rank < 2 {
        c.allreduce_in_place(Call::named("of two").on(&pair), &mut x).unwrap();
        assert_eq!(x[0], 2);
    } else {
        let error = c.allreduce_in_place(Call::named("of two").on(&pair), &mut x).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
    }
    c.barrier(Call::named("of the host").on(&host)).unwrap();
    // Operations overlap, in another order on each rank; one is dropped while it is under way.
    let pending: Vec<_> = (0..20)
        .map(|i| (i + r * 7) % 20)
        .map(|i| (i, c.start_allreduce(&format!("async {i}"), vec![i as f32; 100]).unwrap()))
        .collect();
    drop(c.start_allreduce("dropped", vec![1.0f64; 100_000]).unwrap());
    for (i, op) in pending {
        let (data, ()) = op.wait().unwrap();
        assert_eq!(data, vec![(i * n) as f32; 100]);
    }
    // Rank 0 runs out of data first.
    if rank != 0 {
        let mut x = [1.0f32];
        c.allreduce_in_place(Call::named("without 0").average(), &mut x).unwrap();
        assert_eq!(x[0], 1.0);
    }
    assert_ne!(c.join("").unwrap().0, 0);
    println!("done rank {rank} backend {}", c.backend().unwrap().name);
    c.shutdown(None).unwrap();
}

#[test]
fn every_collective_gives_the_right_values() {
    let mut job = Job::start("collectives", "localhost:3", &["-np", "3"]);
    job.finish();
    assert_eq!(job.seen.iter().filter(|l| l.contains("done rank")).count(), 3, "{:?}", job.seen);
}

/// Disagreement and absence are errors on every rank, and the context stays usable.
fn failures() {
    // The abort below is a loss that ends the job: its SIGTERM must not come before the last line is out.
    extern "C" {
        fn signal(number: i32, handler: usize) -> usize;
    }
    const SIGTERM: i32 = 15;
    const SIG_IGN: usize = 1;
    // SAFETY: sets how this process takes one signal.
    unsafe { signal(SIGTERM, SIG_IGN) };
    let c = Context::new().unwrap();
    let rank = c.rank().unwrap();
    let gate = support::test_directory().join("fifo");
    let mut x = vec![0.0f32; 2 + rank as usize];
    let mismatch = c.allreduce_in_place("lengths", &mut x).unwrap_err();
    assert_eq!(mismatch.status(), Status::Mismatch, "{mismatch}");
    assert!(mismatch.message().contains("lengths"), "{mismatch}");
    if rank == 0 {
        let call = Call::named("absent").timeout(Duration::from_millis(300));
        let op = c.start_allreduce(call, vec![1.0f32]).unwrap();
        let pending = op.wait_for(Duration::from_millis(50)).unwrap_err();
        assert!(pending.status() == Status::Timeout && pending.message().contains('1'), "{pending}");
        assert_eq!(op.wait().unwrap_err().status(), Status::Timeout);
        std::fs::write(&gate, "go").unwrap();
    } else {
        // In no operation meanwhile: if every rank waited, that would be a mismatch.
        assert_eq!(std::fs::read_to_string(&gate).unwrap(), "go");
    }
    c.barrier("all is well").unwrap();
    // Another thread's abort ends a wait.
    if rank == 0 {
        // That the barrier is over here does not mean that it is over there.
        assert_eq!(std::fs::read_to_string(&gate).unwrap(), "out");
        let waiting = c.start_barrier("nobody comes").unwrap();
        let other = c.clone();
        std::thread::spawn(move || other.abort("enough").unwrap()).join().unwrap();
        assert_eq!(waiting.wait().unwrap_err().status(), Status::Closed);
    } else {
        std::fs::write(&gate, "out").unwrap();
        let lost = c.barrier("no one either").unwrap_err();
        assert_eq!(lost.status(), Status::PeerLost, "{lost}");
        c.shutdown(None).ok();
    }
    println!("done rank {rank}");
}

#[test]
fn disagreement_absence_and_loss_are_errors() {
    let mut job = Job::start("failures", "localhost:2", &["-np", "2", "--set", "restart=false"]);
    for _ in 0..2 {
        job.wait("both workers", |l| l.contains("done rank"));
    }
}

/// Rank 1 dies with its range of a key that has no copies: the survivor loads everything from elsewhere.
fn lost(replaced: bool) {
    let c = Context::new().unwrap();
    let value = (Shard::<f32>::new(&c, 10, 0).unwrap(), vec![1.0f32; 4], History::default());
    let mut state = State::with(&c, value, |value, fields| {
        fields.shard("moments", &mut value.0);
        fields.tensor("weights", &mut value.1);
        fields.object("history", &mut value.2);
    })
    .unwrap();
    state
        .on_lost(move |value, sentence| {
            println!("told {sentence}");
            value.0.fill(7.0);
            value.2 .0 = vec![5];
            if replaced {
                value.1 = vec![7.0; 4];
            }
            value.1.fill(7.0);
            Ok(())
        })
        .unwrap();
    let result = elastic::run(&mut state, |state| -> hvd::Result<()> {
        if c.size()? == 1 {
            return Ok(());
        }
        state.commit()?;
        if c.rank()? == 1 {
            std::process::abort();
        }
        loop {
            c.allreduce_in_place("step", &mut [1.0f32])?;
        }
    });
    match result {
        Ok(()) => {
            assert_eq!(
                (&state.0[..], &state.1[..], &state.2 .0[..]),
                (&[7.0; 10][..], &[7.0; 4][..], &[5][..])
            );
            println!("done with what was loaded");
        }
        Err(e) => println!("done with an error: {}", e.message()),
    }
    c.shutdown(None).ok();
}

#[test]
fn what_no_copy_holds_is_loaded_from_elsewhere() {
    let flags = ["-np", "2", "--min-np", "1", "--set", "restart=false"];
    let mut job = Job::start("lost", "localhost:2", &flags);
    job.wait("the sentence", |l| l.contains("told") && l.contains("moments"));
    job.wait("training", |l| l.contains("done with what was loaded"));
    job.finish();
    let mut job = Job::start("lost_and_replaced", "localhost:2", &flags);
    let refused = job.wait("a refusal", |l| l.contains("done with an error"));
    assert!(refused.contains("lost: field 'weights'") && refused.contains("the same memory"), "{refused}");
}

/// One allreduce, and done.
fn once() {
    let c = Context::new().unwrap();
    let mut x = [1i64];
    elastic::run_stateless(&c, || c.allreduce_in_place("once", &mut x)).unwrap();
    println!("done sum {} worker {}", x[0], c.membership().unwrap().worker);
    c.shutdown(None).unwrap();
}

fn options() -> Options {
    let mut options = Options::new().unwrap();
    options.set("np", 2).unwrap().set("local_hosts", true).unwrap();
    for (key, value) in OPTIONS {
        options.set(key, *value).unwrap();
    }
    options
}

fn two_hosts() -> Result<Vec<Host>, Failed> {
    Ok(["one", "two"].map(|name| Host { name: name.into(), slots: 1 }).into())
}

#[test]
fn a_driver_in_this_process_runs_a_job() {
    let driver = Driver::new(&options()).unwrap();
    let program = std::env::current_exe().unwrap();
    let arguments: Vec<&str> =
        [program.to_str().unwrap()].into_iter().chain(WORKER.iter().copied()).collect();
    driver.command(&arguments, &[("HVD_TEST_ROLE", "once")]).unwrap();
    let calls = Arc::new(Mutex::new(0));
    let counted = calls.clone();
    driver
        .discovery(move || {
            *counted.lock().unwrap() += 1;
            two_hosts()
        })
        .unwrap();
    let (sender, lines) = mpsc::channel();
    driver.output(move |line| drop(sender.send((line.host.to_string(), line.text.to_string())))).unwrap();
    assert_eq!(driver.status().unwrap().phase, Phase::New);
    driver.start().unwrap();
    assert_eq!(driver.start().unwrap_err().status(), Status::Invalid);
    driver.wait(Duration::from_secs(60)).unwrap();
    assert_eq!(driver.status().unwrap().phase, Phase::Succeeded);
    drop(driver);
    let lines: Vec<_> = lines.into_iter().collect();
    for host in ["one", "two"] {
        assert!(lines.iter().any(|(h, l)| h == host && l.contains("done sum 2")), "{lines:?}");
    }
    assert!(*calls.lock().unwrap() > 0);
}

/// Starts workers as processes of its own, each with a thread that waits for it.
struct Processes {
    exits: Exits,
    running: Arc<Mutex<HashMap<u64, u32>>>, // process of each worker
    ended: mpsc::Sender<u64>,
}

impl Launcher for Processes {
    fn start(&mut self, launch: &Launch) -> Result<(), Failed> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(WORKER)
            .env("HVD_TEST_ROLE", "once")
            .envs(&launch.environment)
            .spawn()?;
        let worker = launch.worker;
        self.running.lock().unwrap().insert(worker, child.id());
        let (exits, running, ended) = (self.exits.clone(), self.running.clone(), self.ended.clone());
        std::thread::spawn(move || {
            let code = child.wait().ok().and_then(|status| status.code()).unwrap_or(256 + 9);
            running.lock().unwrap().remove(&worker);
            exits.worker_exited(worker, code).unwrap();
            ended.send(worker).unwrap();
        });
        Ok(())
    }
    fn stop(&mut self, worker: u64, _force: bool) {
        if let Some(pid) = self.running.lock().unwrap().get(&worker) {
            kill(i64::from(*pid));
        }
    }
}

#[test]
fn a_launcher_of_ones_own_starts_the_workers() {
    let driver = Driver::new(&options()).unwrap();
    let (ended, ends) = mpsc::channel();
    driver.discovery(two_hosts).unwrap();
    driver.launcher(Processes { exits: driver.exits(), running: Arc::default(), ended }).unwrap();
    driver.start().unwrap();
    driver.wait(Duration::from_secs(60)).unwrap();
    let mut workers = [ends.recv().unwrap(), ends.recv().unwrap()];
    workers.sort_unstable();
    assert_ne!(workers[0], workers[1]);
    let exits = driver.exits();
    drop(driver);
    assert_eq!(exits.worker_exited(1, 0).unwrap_err().status(), Status::Closed);
}

#[test]
fn a_drivers_bad_input_is_an_error() {
    let mut bad = Options::new().unwrap();
    bad.set("hosts", "a:4").unwrap().set("min_np", 5).unwrap().set("np", 2).unwrap();
    assert_eq!(Driver::new(&bad).unwrap_err().status(), Status::Invalid);
    let driver = Driver::new(&options()).unwrap();
    assert_eq!(driver.start().unwrap_err().status(), Status::Invalid);
    assert_eq!(driver.command(&[], &[]).unwrap_err().status(), Status::Invalid);
    assert_eq!(driver.command(&["a\0"], &[]).unwrap_err().status(), Status::Invalid);
    // Discovery that fails or panics at the first call ends the start.
    driver.command(&["true"], &[]).unwrap();
    driver.discovery(|| Err("no hosts today".into())).unwrap();
    assert_eq!(driver.start().unwrap_err().status(), Status::Unavailable);
    let driver = Driver::new(&options()).unwrap();
    driver.command(&["true"], &[]).unwrap();
    driver.discovery(|| panic!("on purpose")).unwrap();
    assert_eq!(driver.start().unwrap_err().status(), Status::Unavailable);
    // A job that goes on is stopped.
    let driver = Driver::new(&options()).unwrap();
    driver.command(&["sleep", "60"], &[]).unwrap();
    driver.discovery(two_hosts).unwrap();
    driver.start().unwrap();
    assert_eq!(driver.wait(Duration::from_millis(20)).unwrap_err().status(), Status::Timeout);
    assert!(driver.describe(Format::Text).unwrap().contains("host"));
    assert!(driver.describe(Format::OpenMetrics).unwrap().ends_with("# EOF\n"));
    let elsewhere = driver.drain("elsewhere", None, "it goes").unwrap_err();
    assert!(
        elsewhere.status() == Status::Invalid && elsewhere.message().contains("elsewhere"),
        "{elsewhere}"
    );
    assert_eq!(driver.undrain("elsewhere").unwrap_err().status(), Status::Invalid);
    assert_eq!(driver.scale(-3).unwrap_err().status(), Status::Invalid);
    assert_eq!(driver::command(&options(), "status", "", None).unwrap_err().status(), Status::Invalid);
    driver.stop("enough").unwrap();
    let error: Error = driver.wait(Duration::from_secs(30)).unwrap_err();
    assert!(error.status() == Status::JobFailed && error.message().contains("enough"), "{error}");
}
