/* connect.h: a context before it joins its job, and the lifetime of handles and borrowed memory. The
 * rules of hvd.h hold here too.
 *
 * Handles
 *  - Handles are not addresses. NULL, a handle of another kind, or any other value gives HVD_INVALID,
 *    never a crash. A handle that was destroyed gives HVD_CLOSED.
 *  - Handles may be destroyed in any order and from any thread, also while other threads use them.
 *  - States, samplers, sets and operations share the context that they are made from. They may outlive
 *    the context's handle, and then give HVD_CLOSED.
 *  - hvd_destroy ends the context: calls under way, in this thread or another, return HVD_CLOSED. When it
 *    returns, every operation has completed, only states borrow memory, and every thread of the context
 *    is gone. Within a call on the context (a training function, a callback of a state) it does this when
 *    that call returns. From a listener it does nothing but log an error.
 *  - A state takes one call at a time: a second thread gets HVD_INVALID. A callback of the state may call
 *    functions of the state. A run loop whose state was destroyed gives HVD_CLOSED.
 *  - hvd_driver_destroy ends the calls of other threads; hvd_driver_wait ends with the job. From a
 *    callback of the driver it does nothing but log an error.
 *
 * Forks
 *  - A forked child has none of the library's threads. Every call on an inherited handle gives HVD_INVALID
 *    at once and destroys nothing. Contexts that the child makes itself work. */
#ifndef HVD_CONNECT_H
#define HVD_CONNECT_H

#include "hvd/hvd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a context that has not joined a job yet. Never blocks. Listeners, states and samplers may be made
 * from it at once; functions that need a job give HVD_INVALID until hvd_connect has succeeded. hvd_abort
 * and hvd_destroy work from here on, whatever the context waits for. `options` may be NULL (environment
 * only); it is read during the call and not kept. */
HVD_API hvd_status hvd_context_create(const hvd_options *options, hvd_context **ret_context,
                                      hvd_error *error);

/* Joins the job and waits until this worker is a member of a generation, at most timeout_ns (0: option
 * init_timeout). hvd_init is hvd_context_create and hvd_connect in one, with the same errors. hvd_connect
 * also gives HVD_CLOSED, as soon as the context is aborted or destroyed; only the initialization of an
 * MPI can't be interrupted. A context connects once: after a failure destroy it and make another one. */
HVD_API hvd_status hvd_connect(hvd_context *context, int64_t timeout_ns, hvd_error *error);

/* hvd_connect without blocking. The operation completes with the status that hvd_connect would return;
 * hvd_op_wait, hvd_op_test and hvd_op_get_fd work on it as for collectives. */
HVD_API hvd_status hvd_connect_begin(hvd_context *context, int64_t timeout_ns, hvd_op **ret_op,
                                     hvd_error *error);

/* hvd_op_destroy for a caller that can't wait for the memory. `destroy` runs once, with no lock held,
 * when the operation no longer borrows memory. It runs at once if the operation has completed, or if the
 * handle is refused. Else it runs during a later call on the context that submits or abandons an
 * operation, at the latest in hvd_destroy. */
HVD_API hvd_status hvd_op_abandon(hvd_op *op, void *userdata, hvd_destroy_fn destroy, hvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
