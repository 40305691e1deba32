//! Fits y = 2x + 1, each worker on its own points. Any worker may die or join at any time.
use hvd::{elastic, Call, Context, State};

fn main() -> hvd::Result<()> {
    let context = Context::new()?;
    let mut state = State::with(&context, ([0.0f32; 2], 0i64), |(w, step), fields| {
        fields.tensor("w", w);
        fields.value("step", step);
    })?;
    elastic::run(&mut state, |state| -> hvd::Result<()> {
        let place = context.membership()?;
        while state.1 < 2000 {
            let x = ((state.1 * i64::from(place.size) + i64::from(place.rank)) % 17) as f32 / 17.0;
            let wrong = state.0[0] * x + state.0[1] - (2.0 * x + 1.0);
            let mut gradient = [wrong * x, wrong];
            context.allreduce_in_place(Call::named("gradient").average(), &mut gradient)?;
            for (w, g) in state.0.iter_mut().zip(gradient) {
                *w -= 0.5 * g;
            }
            state.1 += 1;
            if state.1 % 10 == 0 {
                state.commit()?; // a loss or a change of hosts is passed on: run calls this function again
            }
        }
        Ok(())
    })?;
    println!("rank {} of {}: y = {:.2}x + {:.2}", context.rank()?, context.size()?, state.0[0], state.0[1]);
    context.shutdown(None)
}
