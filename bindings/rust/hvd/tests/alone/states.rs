//! States, listeners and the log.
use super::*;

#[derive(Default)]
struct History {
    steps: Vec<u8>,
    panics: bool,
}

impl Object for History {
    fn save(&mut self, out: &mut dyn Write) -> io::Result<()> {
        assert!(!self.panics, "history panics on purpose");
        out.write_all(&self.steps)
    }
    fn load(&mut self, data: &[u8]) -> io::Result<()> {
        if data.first() == Some(&255) {
            return Err(io::Error::other("history refuses"));
        }
        self.steps = data.to_vec();
        Ok(())
    }
}

struct Training {
    weights: Vec<f32>,
    step: i64,
    rates: [f64; 2],
    history: History,
    sampler: Sampler,
}

impl Variables for Training {
    fn variables<'a>(&'a mut self, fields: &mut Fields<'a>) {
        fields.tensor("weights", &mut self.weights);
        fields.value("step", &mut self.step);
        fields.value("rates", &mut self.rates);
        fields.object("history", &mut self.history);
        fields.sampler("sampler", &self.sampler);
    }
}

fn training(c: &Context) -> State<Training> {
    let sampler =
        Sampler::new(c, &SamplerOptions { samples: 10, batch_size: 4, seed: 1, ..Default::default() })
            .unwrap();
    let value =
        Training { weights: vec![1.0; 8], step: 0, rates: [0.5, 0.25], history: History::default(), sampler };
    State::new(c, value).unwrap()
}

#[test]
fn restore_gives_back_the_last_commit() {
    let c = alone();
    let mut state = training(&c);
    expect(state.restore(), Status::Invalid, &[]);
    let mut indices = Vec::new();
    let batch: Batch = state.sampler.next(None, &mut indices).unwrap();
    assert_eq!((batch.count(), batch.total(), indices.len()), (4, 4, 4));
    state.sampler.record(&batch).unwrap();
    state.history.steps = vec![1, 2, 3];
    state.commit().unwrap();
    assert_eq!(state.revision(), 1);
    state.weights[3] = 9.0;
    state.step = 7;
    state.rates[1] = 9.0;
    state.history.steps.clear();
    let batch = state.sampler.next(None, &mut indices).unwrap();
    state.sampler.record(&batch).unwrap();
    state.restore().unwrap();
    assert_eq!((state.weights[3], state.step, state.rates), (1.0, 0, [0.5, 0.25]));
    assert_eq!(state.history.steps, [1, 2, 3]);
    assert_eq!(state.sampler.info().unwrap().processed, 4);
    state.sync().unwrap();
    assert_eq!(state.statistics().unwrap().restores, 1);
    let saved = state.sampler.save().unwrap();
    state.sampler.set_epoch(3).unwrap();
    state.sampler.load(&saved).unwrap();
    assert_eq!(state.sampler.info().unwrap().epoch, 0);
    expect(state.sampler.load(&saved[1..]), Status::Invalid, &[]);
}

#[test]
fn memory_that_moved_is_an_error() {
    let c = alone();
    let mut state = training(&c);
    state.commit().unwrap();
    let good = std::mem::replace(&mut state.weights, vec![2.0; 8]);
    expect(state.commit(), Status::Invalid, &["'weights'", "same memory"]);
    expect(state.restore(), Status::Invalid, &["'weights'"]);
    expect(elastic::run(&mut state, |_| Ok::<_, Error>(())), Status::Invalid, &["'weights'"]);
    state.weights = good;
    state.commit().unwrap();
    state.weights.truncate(4);
    expect(state.commit(), Status::Invalid, &["'weights'"]);
    expect(
        State::with(&c, (0i64, 0i64), |(a, b), fields| {
            fields.value("twice", a);
            fields.value("twice", b);
        })
        .map(|_| ()),
        Status::Invalid,
        &["twice"],
    );
}

#[test]
fn a_callback_that_fails_or_panics_is_an_error() {
    let c = alone();
    let mut state = training(&c);
    state.commit().unwrap();
    state.history.panics = true;
    expect(state.commit(), Status::CallbackFailed, &["history panics on purpose"]);
    assert_eq!(state.revision(), 1);
    state.history.panics = false;
    state.history.steps = vec![255];
    state.commit().unwrap();
    expect(state.restore(), Status::CallbackFailed, &["history refuses"]);
}

#[test]
fn run_calls_the_function_and_passes_its_errors_on() {
    let c = alone();
    let mut state = training(&c);
    let mut resets = 0;
    let result = elastic::run(&mut state, |state| -> hvd::Result<i64> {
        resets += 1;
        while state.step < 5 {
            state.step += 1;
            state.commit()?;
        }
        Ok(state.step)
    });
    assert_eq!((result.unwrap(), resets), (5, 1));
    // The function's own error, and one of the library's behind a box.
    #[derive(Debug)]
    struct Own;
    impl std::fmt::Display for Own {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("own error")
        }
    }
    impl std::error::Error for Own {}
    let own = elastic::run(&mut state, |_| -> Result<(), Box<dyn std::error::Error>> { Err(Own.into()) });
    assert!(own.unwrap_err().downcast_ref::<Own>().is_some());
    let boxed = elastic::run_stateless(&c, || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        c.broadcast("no such root", &mut [1.0f32], 5)?;
        Ok(())
    });
    assert_eq!(boxed.unwrap_err().downcast_ref::<Error>().unwrap().status(), Status::Invalid);
    // A panic goes on through run, and the loop is closed behind it.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        elastic::run(&mut state, |_| -> hvd::Result<()> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    elastic::run(&mut state, |_| Ok::<_, Error>(())).unwrap();
}

#[test]
fn listeners_may_panic_and_go() {
    let c = alone();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let listener = c
        .listen(Kinds::ALL, move |event| {
            seen.fetch_add(1, Ordering::SeqCst);
            panic!("{event:?}");
        })
        .unwrap();
    expect(c.next_event(), Status::Invalid, &["event_fd"]);
    let _fd = c.event_fd().unwrap();
    assert!(c.next_event().unwrap().is_none());
    drop(listener);
    assert_eq!(Arc::strong_count(&calls), 1, "the listener was freed");
    let events = c.events(Kinds::PEER_LOST | Kinds::GENERATION).unwrap();
    assert!(events.try_next().is_none());
    expect(events.next(Duration::from_millis(1)), Status::Timeout, &[]);
    let listener = c.listen(Kinds::ALL, |_| ()).unwrap();
    c.shutdown(None).unwrap();
    drop(listener);
}

#[test]
fn the_log_goes_to_the_program() {
    let mut options = Options::new().unwrap();
    let lines = Arc::new(AtomicUsize::new(0));
    let count = lines.clone();
    options
        .set_log(hvd::LogLevel::Trace, move |_, line| {
            count.fetch_add(line.len(), Ordering::SeqCst);
            panic!("in the log");
        })
        .unwrap();
    let c = Context::with_options(&options).unwrap();
    drop(options);
    c.shutdown(None).unwrap();
    drop(c);
    assert_eq!(Arc::strong_count(&lines), 1, "the log was freed");
    assert_eq!(hvd::version(), "0.2.0");
}

#[test]
fn types_are_send_and_sync_where_that_is_true() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Context>();
    sync::<Context>();
    send::<ProcessSet>();
    sync::<Sampler>();
    send::<hvd::Buffer>();
    sync::<hvd::Pending<Vec<f32>, ()>>();
    send::<hvd::Op<'static, ()>>();
    sync::<hvd::Scope<'static, 'static>>();
    send::<View<'static>>();
    send::<hvd::driver::Driver>();
    sync::<hvd::driver::Exits>();
    send::<Options>();
    send::<Error>();
}

#[test]
fn a_commit_copies_while_the_program_computes() {
    let mut options = Options::new().unwrap();
    options.set("check_commits", "true").unwrap();
    let c = Context::with_options(&options).unwrap();
    let mut state = training(&c);
    state.step = 1;
    // SAFETY: nothing writes the weights before the end.
    unsafe { state.commit_begin() }.unwrap();
    state.step = 2; // a value, which was saved at the beginning
    state.commit_end().unwrap();
    state.weights[3] = 9.0;
    state.restore().unwrap();
    assert_eq!((state.weights[3], state.step, state.revision()), (1.0, 1, 1));
    // SAFETY: as above. The next commit waits for the one before.
    unsafe { state.commit_begin() }.unwrap();
    state.commit().unwrap();
    assert_eq!(state.revision(), 3);
}

/// The run restores and syncs the state that it began with: another one's memory is not looked at.
#[test]
fn another_state_in_the_runs_place_is_an_error() {
    let c = alone();
    let mut state = training(&c);
    let mut away = Vec::new();
    let result = elastic::run(&mut state, |state| -> hvd::Result<()> {
        state.commit()?;
        let mut other = training(&c);
        std::mem::swap(state, &mut other);
        other.weights = Vec::new(); // the library knows where they were
        away.push(other);
        Err(Error::new(Status::PeerLost, "on purpose"))
    });
    expect(result, Status::Invalid, &["another state"]);
    assert_eq!(state.weights, [1.0; 8]);
}

struct Sharded {
    moments: hvd::Shard<f32>,
    step: i64,
}

impl hvd::Variables for Sharded {
    fn variables<'a>(&'a mut self, fields: &mut hvd::Fields<'a>) {
        fields.shard("moments", &mut self.moments);
        fields.value("step", &mut self.step);
    }
}

#[test]
fn shards_of_a_worker_that_is_alone() {
    let context = alone();
    let moments = hvd::Shard::new(&context, 10, 1).unwrap();
    assert_eq!((moments.offset(), moments.len(), moments.global_elements()), (0, 10, 10));
    let mut state = hvd::State::new(&context, Sharded { moments, step: 0 }).unwrap();
    state.on_lost(|_, sentence| panic!("{sentence}")).unwrap();
    state.moments[9] = 3.0;
    state.commit().unwrap();
    state.moments[9] = 4.0;
    state.restore().unwrap();
    assert_eq!(state.moments[9], 3.0);
    let statistics = state.statistics().unwrap();
    assert_eq!((statistics.shard_bytes, statistics.copy_bytes, statistics.fed_bytes), (40, 0, 0));
    assert_eq!(hvd::shard_range(10, 3, 4).unwrap(), (8, 2));
    let moments = hvd::Shard::with_parity(&context, 10, 1).unwrap();
    let state = hvd::State::new(&context, Sharded { moments, step: 0 });
    expect(state.map(|_| ()), Status::Invalid, &["parity is 1", "2 to 64"]);
    let moments = hvd::Shard::with_parity(&context, 10, 3).unwrap();
    hvd::State::new(&context, Sharded { moments, step: 0 }).unwrap().commit().unwrap();
    assert_eq!(hvd::shard_range(10, 4, 4).unwrap_err().status(), hvd::Status::Invalid);
}

#[test]
fn memory_that_was_replaced_is_told() {
    let c = alone();
    let mut state = training(&c);
    state.relocate().unwrap(); // nothing is elsewhere
    let committed = state.weights.clone();
    state.commit().unwrap();
    let old = std::mem::replace(&mut state.weights, vec![2.0; committed.len()]);
    state.relocate().unwrap();
    drop(old);
    state.restore().unwrap();
    assert_eq!(state.weights, committed);
    state.weights.fill(5.0);
    state.commit().unwrap();
    state.weights.fill(6.0);
    state.restore().unwrap();
    assert_eq!(state.weights, vec![5.0; committed.len()]);
    state.weights.push(0.0);
    state.weights.shrink_to_fit();
    expect(state.relocate(), Status::Invalid, &["'weights'", "as many bytes of the same dtype"]);
}

/// Also one that comes to lie where the other was.
#[test]
fn a_shard_that_was_replaced_is_an_error() {
    let context = alone();
    let shard = || Some(hvd::Shard::<f32>::new(&context, 1 << 12, 0).unwrap());
    let mut state = State::with(&context, shard(), |shard, fields| {
        if let Some(shard) = shard {
            fields.shard("moments", shard);
        }
    })
    .unwrap();
    state.commit().unwrap();
    for _ in 0..10 {
        *state = None;
        let kept = vec![5.0f32; 1 << 12]; // where its elements were, perhaps
        *state = shard();
        expect(state.restore(), Status::Invalid, &["'moments'", "same memory"]);
        expect(state.commit(), Status::Invalid, &["'moments'"]);
        assert!(kept.iter().all(|&x| x == 5.0));
    }
}
