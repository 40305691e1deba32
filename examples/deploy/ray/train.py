"""An elastic job whose workers are Ray actors, each of which joins by the driver's address: an actor a
worker.

    python train.py [--workers 4] [--steps 500] [--lose]

The driver runs in this program and starts nobody. Ray starts an actor anew whose process has died
(max_restarts) and calls its method again (max_task_retries): it joins the next generation. --lose kills one
of them, to see that.
"""

import argparse
import os
import secrets
import signal
import time

import numpy as np
import ray

import hvd


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Worker:
    def pid(self):
        return os.getpid()

    def train(self, address, secret, steps):
        """(rank, steps, final value, generation, process) of this worker."""
        hvd.init(driver=address, secret=secret)
        state = hvd.elastic.ObjectState(step=0, value=0.0)

        @hvd.elastic.run
        def loop(state):
            while state.step < steps:
                gradient = np.array([1.0 + state.step])
                state.value += float(hvd.allreduce(gradient, name="gradient", op=hvd.Average)[0])
                state.step += 1
                time.sleep(0.01)  # the step's own work
                state.commit()

        try:
            loop(state)
            return hvd.rank(), state.step, state.value, hvd.generation(), os.getpid()
        finally:
            hvd.shutdown()


def lose_one(driver, pid):
    """Kills a worker once the job has formed its first generation."""
    while driver.status().phase < hvd.driver.Phase.RUNNING:
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lose", action="store_true", help="kill one actor of this machine")
    arguments = parser.parse_args()

    ray.init(log_to_driver=False)
    here, secret = ray.util.get_node_ip_address(), secrets.token_hex(32)
    # discover_agents: no hosts are named, and nobody is started; who knows the secret may come.
    with hvd.driver.Driver(discover_agents=True, np=arguments.workers, min_np=1, max_np=arguments.workers,
                           listen=here, secret=secret) as driver:
        driver.start()
        actors = [Worker.remote() for _ in range(arguments.workers)]
        pids = ray.get([actor.pid.remote() for actor in actors])
        address = f"{here}:{driver.status().port}"
        results = [actor.train.remote(address, secret, arguments.steps) for actor in actors]
        if arguments.lose:
            lose_one(driver, pids[-1])
        driver.wait()
        for rank, steps, value, generation, pid in sorted(ray.get(results)):
            print(f"rank {rank}: {steps} steps, value {value:g}, generation {generation}, "
                  f"{'the first process' if pid in pids else 'started anew'}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
