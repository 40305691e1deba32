/* connect.h: a context before it joins its job, and what becomes of handles and of borrowed memory. The
 * rules of hvd.h hold here too. Where hvd.h still asks for an order of destruction, or that no other call
 * be running, this holds instead.
 *
 * Handles
 *  - Handles are no addresses. A NULL handle, one of another kind and what is no handle at all give
 *    HVD_INVALID, never a crash. A handle that was destroyed gives HVD_CLOSED.
 *  - Handles may be destroyed in any order and from any thread, also while other threads use them.
 *  - What is made from a context shares it. It may outlive the context's handle, and then gives
 *    HVD_CLOSED.
 *  - hvd_destroy ends the context: calls under way, in this thread or another, return HVD_CLOSED. When it
 *    returns every operation has completed, no memory is borrowed but by states, and every thread of the
 *    context is gone. Called from within a call on the context (a training function, a callback of a
 *    state) it does this when that call returns. From a listener it does nothing but log an error.
 *  - A state takes one call at a time: another thread's gets HVD_INVALID. A callback of the state may call
 *    functions of it. A run loop whose state was destroyed gives HVD_CLOSED.
 *  - hvd_driver_destroy ends the calls of other threads; hvd_driver_wait ends with the job. From a
 *    callback of the driver it does nothing but log an error.
 *
 * Forks
 *  - A forked child has none of the library's threads. Every call on a handle that it inherited gives
 *    HVD_INVALID at once and destroys nothing. Contexts that it makes itself work. */
#ifndef HVD_CONNECT_H
#define HVD_CONNECT_H

#include "hvd/hvd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a context that has joined no job yet. Never blocks. Listeners, states and samplers may be made
 * from it at once; what needs a job gives HVD_INVALID until hvd_connect has succeeded. hvd_abort and
 * hvd_destroy work from here on, whatever the context waits for. `options` may be NULL (environment only);
 * it is read during the call and not kept. */
HVD_API hvd_status hvd_context_create(const hvd_options *options, hvd_context **ret_context,
                                      hvd_error *error);

/* Joins the job and waits until this worker is a member of a generation, at most timeout_ns (0: option
 * init_timeout). hvd_init is hvd_context_create and this in one, with the same errors; here also
 * HVD_CLOSED, as soon as the context is aborted or destroyed. Only while an MPI initializes itself can it
 * not be interrupted. A context connects once: after a failure destroy it and make another one. */
HVD_API hvd_status hvd_connect(hvd_context *context, int64_t timeout_ns, hvd_error *error);

/* The same without blocking. The operation completes with what hvd_connect would return: hvd_op_wait,
 * hvd_op_test and hvd_op_get_fd serve as for collectives. */
HVD_API hvd_status hvd_connect_begin(hvd_context *context, int64_t timeout_ns, hvd_op **ret_op,
                                     hvd_error *error);

/* hvd_op_destroy for who can't wait for the memory. `destroy` runs once, with no lock held, when the
 * operation no longer borrows memory: at once if it has completed, or if the handle is refused; else
 * during a later call on the context that submits or abandons an operation, at the latest in hvd_destroy. */
HVD_API hvd_status hvd_op_abandon(hvd_op *op, void *userdata, hvd_destroy_fn destroy, hvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
