//! Operations under way: threads, forks, ends, and memory.
use super::*;

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

/// Whether a descriptor polls readable before the time is up.
fn readable(fd: &impl AsRawFd, timeout_ms: i32) -> bool {
    #[repr(C)]
    struct PollFd {
        fd: i32,
        events: i16,
        revents: i16,
    }
    extern "C" {
        fn poll(fds: *mut PollFd, count: std::ffi::c_ulong, timeout_ms: i32) -> i32;
    }
    const POLLIN: i16 = 1;
    let mut what = PollFd { fd: fd.as_raw_fd(), events: POLLIN, revents: 0 };
    // SAFETY: one entry, and room for its answer.
    unsafe { poll(&mut what, 1, timeout_ms) == 1 }
}

#[test]
fn an_event_loop_learns_of_the_end_by_a_descriptor() {
    let (a, b) = pair();
    let pending = a.start_allreduce("x", vec![1.0f32; 4]).unwrap();
    let fd = pending.completion_fd().unwrap().try_clone_to_owned().unwrap();
    assert!(!readable(&fd, 0) && !pending.is_done());
    let other = b.start_allreduce("x", vec![2.0f32; 4]).unwrap();
    assert!(readable(&fd, 60_000) && pending.is_done());
    assert_eq!(pending.wait().unwrap().0, [3.0; 4]);
    assert!(readable(&fd, 0), "the duplicate is the program's");
    other.wait().unwrap();

    let c = alone();
    c.scope(|s| assert!(readable(&s.barrier("b").unwrap().completion_fd().unwrap(), 60_000)));
}
