//! A worker that is alone: every collective, states, and bad input, which is an error and never a crash.
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use hvd::{
    elastic, Batch, Bf16, Bool, Call, Context, Error, Fields, Kinds, Object, Options, ProcessSet, Sampler,
    SamplerOptions, SetRule, State, Status, Variables, View, ViewMut, F16,
};

fn alone() -> Context {
    Context::new().expect("a worker that is alone")
}

/// Two workers of one job, both in this process.
fn pair() -> (Context, Context) {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let join = move |rank: i32| {
        let mut options = Options::new().unwrap();
        options
            .set("rank", rank)
            .unwrap()
            .set("size", 2)
            .unwrap()
            .set("rendezvous", address.as_str())
            .unwrap();
        options.set("secret", "s".repeat(32)).unwrap().set("operation_timeout", 30.0).unwrap();
        Context::with_options(&options).expect("a worker of two")
    };
    std::thread::scope(|threads| {
        let second = threads.spawn(|| join(1));
        (join(0), second.join().unwrap())
    })
}

#[track_caller]
fn expect<T: std::fmt::Debug>(result: hvd::Result<T>, status: Status, names: &[&str]) -> Error {
    let error = result.expect_err("must fail");
    assert_eq!(error.status(), status, "{error}");
    for name in names {
        assert!(error.message().contains(name), "{error} does not name {name:?}");
    }
    error
}

#[test]
fn every_collective() {
    let c = alone();
    assert_eq!((c.rank().unwrap(), c.size().unwrap(), c.generation().unwrap()), (0, 1, 0));
    assert_eq!(c.backend().unwrap().name, "self");
    let mut out = [0.0f32; 3];
    c.allreduce("sum", &[1.0f32, 2.0, 3.0], &mut out).unwrap();
    assert_eq!(out, [1.0, 2.0, 3.0]);
    c.allreduce_in_place(Call::named("scaled").average().prescale(2.0).postscale(0.5), &mut out).unwrap();
    assert_eq!(out, [1.0, 2.0, 3.0]);
    let (mut a, mut b) = (vec![1i64, 2], vec![3.0f64]);
    c.grouped_allreduce_in_place("group", [ViewMut::from(&mut a), ViewMut::from(&mut b)]).unwrap();
    c.grouped_allreduce("group 2", [View::from(&[7i64, 8])], [ViewMut::from(&mut a)]).unwrap();
    assert_eq!(a, [7, 8]);
    c.broadcast("broadcast", &mut a, 0).unwrap();
    c.broadcast_variables("variables", [ViewMut::from(&mut a), ViewMut::from(&mut b)], 0).unwrap();
    let rows = View::new(&[1u8, 2, 3, 4, 5, 6], &[3, 2]).unwrap();
    let gathered = c.allgather("gather", rows).unwrap();
    assert_eq!((gathered.shape(), gathered.to_vec::<u8>().unwrap()), (vec![3, 2], vec![1, 2, 3, 4, 5, 6]));
    expect(gathered.as_slice::<f32>(), Status::Invalid, &["uint8", "float32"]);
    let mut room = [0u8; 8];
    let written = c.allgather_into("gather into", rows, ViewMut::new(&mut room, &[4, 2]).unwrap()).unwrap();
    assert_eq!((written.0, room), (3, [1, 2, 3, 4, 5, 6, 0, 0]));
    let both = c.grouped_allgather("gathers", [rows, View::from(&[1.5f64])]).unwrap();
    assert_eq!(both[1].to_vec::<f64>().unwrap(), [1.5]);
    assert_eq!(c.reducescatter(Call::named("scatter").splits(&[3]), rows).unwrap().shape(), [3, 2]);
    assert_eq!(
        c.reducescatter_into("scatter into", rows, ViewMut::new(&mut room, &[4, 2]).unwrap()).unwrap().0,
        3
    );
    let exchange = c.alltoall(Call::named("exchange").splits(&[3]), rows).unwrap();
    assert_eq!((exchange.output.shape(), exchange.received), (vec![3, 2], vec![3]));
    let exchange = c.alltoall_into("exchange into", rows, ViewMut::new(&mut room, &[4, 2]).unwrap()).unwrap();
    assert_eq!((exchange.output.0, exchange.received), (3, vec![3]));
    c.barrier("barrier").unwrap();
    let mut object = b"object".to_vec();
    c.broadcast_object("object", &mut object, 0).unwrap();
    assert_eq!(object, b"object");
    let (data, gathered) = c.start_allgather("owned gather", vec![1i32, 2]).unwrap().wait().unwrap();
    assert_eq!((data, gathered.to_vec::<i32>().unwrap()), (vec![1, 2], vec![1, 2]));
    c.start_barrier("owned barrier").unwrap().wait().unwrap();
    assert_eq!(c.join("").unwrap().0, 0);
    c.shutdown(None).unwrap();
    c.shutdown(None).unwrap(); // a second time does nothing
}

#[test]
fn every_dtype_and_shape() {
    let c = alone();
    macro_rules! echo {
        ($($value:expr),*) => { $( {
            let (input, mut output) = ([$value; 2], [$value; 2]);
            c.allreduce("echo", &input, &mut output).unwrap();
            assert_eq!(input, output);
        } )* };
    }
    echo!(1u8, -1i8, 2u16, -2i16, 3u32, -3i32, 4u64, -4i64, 0.5f32, 0.25f64);
    echo!(F16::from_f32(1.5), Bf16::from_f32(2.5), Bool::from(true));
    let mut number = 2.5f64;
    c.allreduce_in_place("scalar", ViewMut::scalar(&mut number)).unwrap();
    assert_eq!(number, 2.5);
    let mut nothing: [f32; 0] = [];
    c.allreduce_in_place("nothing", &mut nothing).unwrap();
    assert!(c.allgather("no rows", &nothing).unwrap().as_slice::<f32>().unwrap().is_empty());
}

#[test]
fn backends_are_told_of() {
    let all = hvd::backends(None).unwrap();
    assert!(all.iter().any(|b| b.usable && b.name == "self"), "{all:?}");
    let c = alone();
    let choice =
        c.backend_choice(hvd::Memory::Host, hvd::Dtype::Float32, hvd::Collective::Allreduce).unwrap();
    assert_eq!(choice.name, "self");
    let choice = c.backend_choice(hvd::Memory::Cuda, hvd::Dtype::Float32, hvd::Collective::Allreduce);
    expect(choice, Status::Unsupported, &[]);
}

#[test]
fn halves_round_to_nearest_even() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (F16(bits), Bf16(bits));
        if half.to_f32().is_nan() {
            assert!(F16::from_f32(half.to_f32()).to_f32().is_nan());
        } else {
            assert_eq!(F16::from_f32(half.to_f32()), half);
        }
        if !brain.to_f32().is_nan() {
            assert_eq!(Bf16::from_f32(brain.to_f32()), brain);
        }
    }
    assert_eq!(F16::from_f32(2049.0).to_f32(), 2048.0);
    assert_eq!(F16::from_f32(2051.0).to_f32(), 2052.0);
    assert_eq!(F16::from_f32(65520.0).to_f32(), f32::INFINITY);
    assert_eq!(F16::from_f32(2f32.powi(-25)).to_f32(), 0.0);
    assert_eq!(F16::from_f32(1.5 * 2f32.powi(-25)).to_f32(), 2f32.powi(-24));
    assert_eq!(Bf16::from_f32(1.0 + 2f32.powi(-8)).to_f32(), 1.0);
}

#[test]
fn bad_input_is_an_error() {
    let c = alone();
    let (floats, mut doubles) = ([1.0f32; 4], [0.0f64; 4]);
    expect(c.allreduce("dtype", &floats, &mut doubles), Status::Invalid, &["float32", "float64"]);
    expect(c.allreduce("length", &floats, &mut [0.0f32; 3]), Status::Invalid, &["4", "3"]);
    expect(View::new(&floats, &[2, 3]), Status::Invalid, &["[2, 3]", "4 elements"]);
    expect(View::new(&floats, &[usize::MAX, 2]), Status::Invalid, &[]);
    expect(View::new(&floats, &[1, 1, 1, 1, 1, 1, 1, 1, 4]), Status::Invalid, &["at most 8"]);
    expect(View::with_strides(&floats, &[2, 2], &[1, 2]), Status::Invalid, &["not contiguous"]);
    assert!(View::with_strides(&floats, &[2, 2], &[2, 1]).is_ok());
    expect(c.allreduce_in_place("", &mut doubles), Status::Invalid, &["name"]);
    expect(c.allreduce_in_place("a\0b", &mut doubles), Status::Invalid, &["NUL"]);
    expect(c.allreduce_in_place("hvd.x", &mut doubles), Status::Invalid, &["hvd."]);
    expect(c.allreduce_in_place(&"x".repeat(256), &mut doubles), Status::Invalid, &["255"]);
    expect(c.broadcast("root", &mut doubles, 1), Status::Invalid, &["root"]);
    expect(c.broadcast(Call::named("reduction").max(), &mut doubles, 0), Status::Invalid, &["reduction"]);
    expect(c.alltoall(Call::named("splits").splits(&[1, 2]), &floats), Status::Invalid, &["split"]);
    expect(c.alltoall(Call::named("splits").splits(&[5]), &floats), Status::Invalid, &["5", "4"]);
    expect(
        c.allreduce_in_place(Call::named("factor").prescale(f64::NAN), &mut doubles),
        Status::Invalid,
        &["scale"],
    );
    expect(
        c.grouped_allreduce(
            "group",
            [View::from(&floats)],
            [ViewMut::from(&mut doubles), (&mut [0.0f32]).into()],
        ),
        Status::Invalid,
        &["1 inputs and 2 outputs"],
    );
    let small = ViewMut::new(&mut doubles, &[1, 4]).unwrap();
    expect(
        c.allgather_into("room", View::new(&[0.0f64; 8], &[2, 4]).unwrap(), small),
        Status::Invalid,
        &["2"],
    );
    expect(ProcessSet::new(&c, "set", &[3], SetRule::Workers), Status::Invalid, &["3"]);
    let other = alone();
    let set = ProcessSet::new(&c, "all", &[0], SetRule::Workers).unwrap();
    assert_eq!((set.ranks().unwrap(), set.info().unwrap().size), (vec![0], 1));
    c.barrier(Call::named("on a set").on(&set)).unwrap();
    expect(other.barrier(Call::named("another's set").on(&set)), Status::Invalid, &["another context"]);
    let mut options = Options::new().unwrap();
    expect(options.set("no_such_key", 1).map(|_| ()), Status::Invalid, &["no_such_key"]);
    expect(options.set("np", "many").map(|_| ()), Status::Invalid, &["np", "many"]);
    expect(options.set("a\0", "b").map(|_| ()), Status::Invalid, &["NUL"]);
    assert_eq!(options.set("np", 3).unwrap().get("np").unwrap(), "3");
    assert!(Options::describe().contains("operation_timeout"));
    c.barrier("all is well").unwrap();
}

#[test]
fn after_shutdown_and_after_abort_calls_are_closed() {
    for abort in [false, true] {
        let c = alone();
        let mut state = State::with(&c, 0i64, |v, fields| fields.value("v", v)).unwrap();
        let sampler =
            Sampler::new(&c, &SamplerOptions { samples: 4, batch_size: 2, ..Default::default() }).unwrap();
        let set = ProcessSet::new(&c, "all", &[0], SetRule::Workers).unwrap();
        if abort {
            c.abort("test").unwrap();
            expect(c.barrier("late"), Status::Closed, &["test"]);
            continue;
        }
        c.shutdown(None).unwrap();
        expect(c.barrier("late"), Status::Closed, &[]);
        expect(c.allgather("late", &[1u8]), Status::Closed, &[]);
        expect(c.start_allreduce("late", vec![1.0f32]).map(|_| ()), Status::Closed, &[]);
        expect(c.membership(), Status::Closed, &[]);
        expect(c.events(Kinds::ALL).map(|_| ()), Status::Closed, &[]);
        expect(state.commit(), Status::Closed, &[]);
        expect(sampler.next(None, &mut Vec::new()), Status::Closed, &[]);
        expect(set.info(), Status::Closed, &[]);
        expect(elastic::run(&mut state, |_| Ok::<_, Error>(())), Status::Closed, &[]);
    }
}

#[test]
fn other_threads_may_call() {
    let c = alone();
    std::thread::scope(|threads| {
        for t in 0..4 {
            let c = &c;
            threads.spawn(move || {
                for i in 0..50 {
                    let mut x = [i as f32];
                    c.allreduce_in_place(&format!("thread {t}"), &mut x).unwrap();
                    assert_eq!(x[0], i as f32);
                }
            });
        }
    });
    let (c2, mut state) = (c.clone(), State::with(&c, vec![1.0f32], |v, f| f.tensor("v", v)).unwrap());
    // A context can be dropped in another thread than the one that made it, and a state used there.
    std::thread::spawn(move || {
        c2.barrier("there").unwrap();
    })
    .join()
    .unwrap();
    state.commit().unwrap();
}

extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

#[test]
fn after_a_fork_calls_are_errors() {
    let c = alone();
    let mut state = State::with(&c, 0i64, |v, fields| fields.value("v", v)).unwrap();
    let set = ProcessSet::new(&c, "all", &[0], SetRule::Workers).unwrap();
    let sampler =
        Sampler::new(&c, &SamplerOptions { samples: 4, batch_size: 2, ..Default::default() }).unwrap();
    let pending = c.start_allreduce("pending", vec![1.0f32]).unwrap();
    let events = c.events(Kinds::ALL).unwrap();
    let driver =
        hvd::driver::Driver::new(Options::new().unwrap().set("hosts", "localhost:1").unwrap()).unwrap();
    // SAFETY: the child only makes calls that must fail at once, and ends.
    let child = unsafe { fork() };
    if child == 0 {
        let invalid = expect_in_child;
        let good = [
            invalid(c.barrier("child").err()),
            invalid(c.rank().err()),
            invalid(c.shutdown(None).err()),
            invalid(state.commit().err()),
            invalid(set.ranks().err()),
            invalid(sampler.info().err()),
            invalid(driver.start().err()),
            invalid(pending.wait().err()),
            invalid(state.restore().err()),
            invalid(elastic::run(&mut state, |_| Ok::<_, Error>(())).err()),
            invalid(driver.status().err()),
            invalid(c.abort("child").err()),
            invalid(c.events(Kinds::ALL).err()),
            invalid(c.next_event().err()),
            invalid(State::with(&c, 0i64, |v, fields| fields.value("v", v)).err()),
            events.try_next().is_none(),
        ];
        drop((state, set, sampler, driver, events, c)); // leaves the parent's worker alone
        let wrong = good.iter().position(|good| !good).map_or(0, |at| at as i32 + 1);
        // SAFETY: ends the child without running what the parent registered.
        unsafe { _exit(wrong) }
    }
    let mut status = -1;
    // SAFETY: our own child.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "check number {} failed in the child", status >> 8);
    pending.wait().unwrap();
    state.commit().unwrap();
    c.shutdown(None).unwrap();
}

#[test]
fn an_operation_under_way_is_the_parents_alone() {
    let (first, second) = pair();
    let (mut data, mut others) = ([1.0f32; 8], [2.0f32; 8]);
    let dropped = first.start_allreduce("dropped", vec![1.0f32; 8]).unwrap();
    let mut child = -1;
    let good = first.scope(|s| {
        let op = s.allreduce_in_place("x", &mut data).unwrap();
        // SAFETY: the child makes calls that must fail at once, leaves the scope, and ends.
        child = unsafe { fork() };
        if child == 0 {
            return expect_in_child(op.wait().err()) && expect_in_child(op.wait_for(Duration::ZERO).err());
        }
        second.allreduce_in_place("x", &mut others).unwrap();
        op.wait().is_ok()
    });
    if child == 0 {
        drop(dropped);
        let good = good && expect_in_child(first.barrier("child").err()); // which sweeps what was dropped
        drop((first, second));
        // SAFETY: ends the child without running what the parent registered.
        unsafe { _exit(i32::from(!good)) }
    }
    let mut status = -1;
    // SAFETY: our own child.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!((status, good, data, others), (0, true, [3.0; 8], [3.0; 8]));
    second.allreduce_in_place("dropped", &mut others).unwrap();
    assert_eq!(dropped.wait().unwrap().0, [4.0; 8]);
}

fn expect_in_child(error: Option<Error>) -> bool {
    error.is_some_and(|e| e.status() == Status::Invalid && e.message().contains("fork"))
}

#[test]
fn a_worker_that_is_dropped_leaves_the_job_though_an_operation_goes_on() {
    let (first, second) = pair();
    drop(second.start_allreduce("never", vec![1.0f32; 1000]).unwrap());
    drop(second);
    expect(first.barrier("alone now"), Status::PeerLost, &[]);
}

#[test]
fn what_came_out_outlives_its_worker() {
    let (first, second) = pair();
    let (a, b) = std::thread::scope(|threads| {
        let other = threads.spawn(|| second.allgather("rows", &[2i32, 3]).unwrap());
        (first.allgather("rows", &[1i32]).unwrap(), other.join().unwrap())
    });
    drop((first, second));
    assert_eq!((a.as_slice::<i32>().unwrap(), b.to_vec().unwrap()), (&[1, 2, 3][..], vec![1i32, 2, 3]));
}

#[test]
fn an_operation_ends_when_another_thread_closes_its_worker() {
    let (first, second) = pair();
    let mut data = [1.0f32; 8];
    let worker = &first;
    std::thread::scope(|threads| {
        let pending = first.start_allreduce("pending", vec![1.0f32; 8]).unwrap();
        let waiter = threads.spawn(move || pending.wait().map(|_| ()));
        let (begun, begins) = std::sync::mpsc::channel();
        let scoped = threads.spawn(move || {
            worker.scope(|s| {
                let op = s.allreduce_in_place("scoped", &mut data)?;
                begun.send(()).unwrap();
                op.wait()
            })
        });
        begins.recv().unwrap();
        first.abort("enough").unwrap();
        expect(waiter.join().unwrap(), Status::Closed, &["enough"]);
        expect(scoped.join().unwrap(), Status::Closed, &["enough"]);
    });
    expect(second.barrier("alone now"), Status::PeerLost, &[]);
}

#[test]
fn leaked_and_dropped_operations_harm_nobody() {
    let c = alone();
    for i in 0..100 {
        let (dropped, leaked) = (format!("dropped {i}"), format!("leaked {i}"));
        drop(c.start_allreduce(&dropped, vec![1.0f32; 1000]).unwrap());
        std::mem::forget(c.start_allreduce(&leaked, vec![1.0f32; 1000]).unwrap());
    }
    let mut data = vec![3.0f32; 1000];
    c.scope(|s| {
        std::mem::forget(s.allreduce_in_place("leaked in a scope", &mut data)?);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(data[999], 3.0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        c.scope(|s| {
            let _op = s.allreduce_in_place("before a panic", &mut data).unwrap();
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    c.barrier("all is well").unwrap();
}

#[test]
fn operations_overlap_in_a_scope() {
    let c = alone();
    let (x, mut y, mut z) = (vec![1.0f32; 10], vec![0.0f32; 10], [5i64]);
    let gathered = c
        .scope(|s| {
            let a = s.allreduce("a", &x, &mut y)?;
            let b = s.broadcast("b", &mut z, 0)?;
            let c = s.allgather("c", &x)?;
            let d = s.barrier("d")?;
            d.wait_for(Duration::from_secs(10))?;
            a.wait()?;
            b.wait()?;
            assert!(a.is_done());
            c.wait()
        })
        .unwrap();
    assert_eq!((y, gathered.shape()), (x, vec![10]));
}

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
    assert_eq!(hvd::version(), "0.1.0");
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
