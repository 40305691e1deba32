// hvdrun's first process: starts the driver as a second one, and another driver if that one dies. It is the
// parent of the job: workers whose driver died are its children, and its exit status is the job's.
#pragma once

namespace hvd::cli {

/// Tells the keeper that the job is over, with this exit status: no other driver is to be started.
void tell_over(int keeper, int status);

/// Forks: the child is the driver (-1, and *ret_keeper is the descriptor of its keeper), this process keeps
/// it and starts another one if it dies, until one says that the job is over: then its exit status is
/// returned. -1 without a descriptor: it can't be kept here, be the driver yourself. Before there is a
/// thread.
int keep_driver(int* ret_keeper);

}  // namespace hvd::cli
