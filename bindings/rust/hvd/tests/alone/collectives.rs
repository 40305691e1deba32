//! What each collective gives, and what is refused.
use super::*;

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
    c.grouped_allreduce(Call::named("no sum").average().prescale(2.0), [], []).unwrap();
    c.broadcast_variables("no copy", [], 0).unwrap();
    assert!(c.grouped_allgather("no rows", []).unwrap().is_empty());
    c.start_grouped_allreduce("no owned sum", Vec::<Vec<f32>>::new()).unwrap().wait().unwrap();
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
    c.reduce("reduce", &[5i32], &mut [0i32], 0).unwrap();
    let all = c.gather("gather to one", rows, 0).unwrap();
    assert_eq!((all.output.shape(), all.received), (vec![3, 2], vec![3]));
    let share = c.scatter("deal", rows, ViewMut::new(&mut room, &[4, 2]).unwrap(), 0).unwrap();
    assert_eq!(share.0, 3);
    assert_eq!(c.allgather_object("objects", b"mine").unwrap(), [b"mine"]);
    assert_eq!(c.gather_object("objects", b"", 0).unwrap(), [b""]);
    expect(c.send("send", &[1u8], 0), Status::Invalid, &["the other rank is 0"]);
    expect(c.receive("receive", &mut [1u8], 1), Status::Invalid, &["the other rank is 1"]);
    c.allreduce_in_place(Call::default(), &mut out).unwrap(); // it gets a number
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
    c.barrier("").unwrap(); // it gets a number
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
