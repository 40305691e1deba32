/* Layout of the public structs on 64-bit Linux: made by scripts/api/make.py from api.json, and a
 * test in that it compiles. A struct with struct_size may get fields at its end; nothing else here changes
 * within an ABI version. */
#include <stddef.h>

#include "hvd/backend.h"
#include "hvd/connect.h"
#include "hvd/direct.h"
#include "hvd/driver.h"
#include "hvd/sampler.h"
#include "hvd/shards.h"

/* A negative array size is an error in C99. */
#define HOLDS(name, condition) typedef char name[(condition) ? 1 : -1]
#define SIZE(type, bytes) HOLDS(type##_size, sizeof(type) == (bytes))
#define AT(type, field, bytes) HOLDS(type##_##field##_at, offsetof(type, field) == (bytes))
#define IS(name, number) HOLDS(name##_is, (name) == (number))

HOLDS(pointers_are_64_bits, sizeof(void *) == 8 && sizeof(size_t) == 8);

SIZE(hvd_error, 560);
AT(hvd_error, struct_size, 0);
AT(hvd_error, status, 8);
AT(hvd_error, rank, 12);
AT(hvd_error, generation, 16);
AT(hvd_error, vendor_code, 24);
AT(hvd_error, backend, 32);
AT(hvd_error, message, 48);

SIZE(hvd_membership_info, 64);
AT(hvd_membership_info, struct_size, 0);
AT(hvd_membership_info, rank, 8);
AT(hvd_membership_info, size, 12);
AT(hvd_membership_info, local_rank, 16);
AT(hvd_membership_info, local_size, 20);
AT(hvd_membership_info, cross_rank, 24);
AT(hvd_membership_info, cross_size, 28);
AT(hvd_membership_info, generation, 32);
AT(hvd_membership_info, membership_epoch, 40);
AT(hvd_membership_info, worker, 48);
AT(hvd_membership_info, term, 56);

SIZE(hvd_backend_info, 872);
AT(hvd_backend_info, struct_size, 0);
AT(hvd_backend_info, name, 8);
AT(hvd_backend_info, version, 24);
AT(hvd_backend_info, path, 88);
AT(hvd_backend_info, detail, 600);
AT(hvd_backend_info, dtypes, 856);
AT(hvd_backend_info, collectives, 864);

SIZE(hvd_tensor, 104);
AT(hvd_tensor, struct_size, 0);
AT(hvd_tensor, data, 8);
AT(hvd_tensor, dtype, 16);
AT(hvd_tensor, ndim, 20);
AT(hvd_tensor, shape, 24);
AT(hvd_tensor, memory, 88);
AT(hvd_tensor, device, 92);
AT(hvd_tensor, stream, 96);

SIZE(hvd_process_set_info, 40);
AT(hvd_process_set_info, struct_size, 0);
AT(hvd_process_set_info, rank, 8);
AT(hvd_process_set_info, size, 12);
AT(hvd_process_set_info, local_rank, 16);
AT(hvd_process_set_info, local_size, 20);
AT(hvd_process_set_info, cross_rank, 24);
AT(hvd_process_set_info, cross_size, 28);
AT(hvd_process_set_info, generation, 32);

SIZE(hvd_request, 104);
AT(hvd_request, struct_size, 0);
AT(hvd_request, collective, 8);
AT(hvd_request, root, 12);
AT(hvd_request, name, 16);
AT(hvd_request, inputs, 24);
AT(hvd_request, outputs, 32);
AT(hvd_request, count, 40);
AT(hvd_request, reduction, 48);
AT(hvd_request, priority, 52);
AT(hvd_request, prescale, 56);
AT(hvd_request, postscale, 64);
AT(hvd_request, splits, 72);
AT(hvd_request, split_count, 80);
AT(hvd_request, process_set, 88);
AT(hvd_request, timeout_ns, 96);

SIZE(hvd_state_info, 104);
AT(hvd_state_info, struct_size, 0);
AT(hvd_state_info, revision, 8);
AT(hvd_state_info, commits, 16);
AT(hvd_state_info, restores, 24);
AT(hvd_state_info, syncs, 32);
AT(hvd_state_info, bytes, 40);
AT(hvd_state_info, sync_sent_bytes, 48);
AT(hvd_state_info, sync_received_bytes, 56);
AT(hvd_state_info, last_commit_ns, 64);
AT(hvd_state_info, written_bytes, 72);
AT(hvd_state_info, shard_bytes, 80);
AT(hvd_state_info, copy_bytes, 88);
AT(hvd_state_info, fed_bytes, 96);

SIZE(hvd_recovery_info, 384);
AT(hvd_recovery_info, struct_size, 0);
AT(hvd_recovery_info, from_generation, 8);
AT(hvd_recovery_info, to_generation, 16);
AT(hvd_recovery_info, cause, 24);
AT(hvd_recovery_info, from_size, 28);
AT(hvd_recovery_info, to_size, 32);
AT(hvd_recovery_info, attempts, 36);
AT(hvd_recovery_info, revision, 40);
AT(hvd_recovery_info, began_at_ns, 48);
AT(hvd_recovery_info, detection_ns, 56);
AT(hvd_recovery_info, abort_ns, 64);
AT(hvd_recovery_info, restore_ns, 72);
AT(hvd_recovery_info, forming_ns, 80);
AT(hvd_recovery_info, connecting_ns, 88);
AT(hvd_recovery_info, sync_ns, 96);
AT(hvd_recovery_info, total_ns, 104);
AT(hvd_recovery_info, sync_bytes, 112);
AT(hvd_recovery_info, reason, 120);
AT(hvd_recovery_info, spares, 376);

SIZE(hvd_event, 304);
AT(hvd_event, struct_size, 0);
AT(hvd_event, kind, 8);
AT(hvd_event, lost, 12);
AT(hvd_event, sequence, 16);
AT(hvd_event, generation, 24);
AT(hvd_event, membership_epoch, 32);
AT(hvd_event, rank, 40);
AT(hvd_event, size, 44);
AT(hvd_event, message, 48);

SIZE(hvd_available_backend_info, 1152);
AT(hvd_available_backend_info, struct_size, 0);
AT(hvd_available_backend_info, name, 8);
AT(hvd_available_backend_info, version, 24);
AT(hvd_available_backend_info, path, 88);
AT(hvd_available_backend_info, usable, 600);
AT(hvd_available_backend_info, abi_version, 604);
AT(hvd_available_backend_info, memories, 608);
AT(hvd_available_backend_info, dtypes, 616);
AT(hvd_available_backend_info, collectives, 624);
AT(hvd_available_backend_info, local, 632);
AT(hvd_available_backend_info, max_instances, 636);
AT(hvd_available_backend_info, reason, 640);

SIZE(hvd_backend_choice_info, 536);
AT(hvd_backend_choice_info, struct_size, 0);
AT(hvd_backend_choice_info, name, 8);
AT(hvd_backend_choice_info, reason, 24);

SIZE(hvd_sampler_options, 40);
AT(hvd_sampler_options, struct_size, 0);
AT(hvd_sampler_options, samples, 8);
AT(hvd_sampler_options, batch_size, 16);
AT(hvd_sampler_options, seed, 24);
AT(hvd_sampler_options, in_order, 32);
AT(hvd_sampler_options, padding, 36);

SIZE(hvd_sampler_batch, 48);
AT(hvd_sampler_batch, struct_size, 0);
AT(hvd_sampler_batch, generation, 8);
AT(hvd_sampler_batch, epoch, 16);
AT(hvd_sampler_batch, position, 24);
AT(hvd_sampler_batch, count, 32);
AT(hvd_sampler_batch, total, 40);

SIZE(hvd_sampler_info, 56);
AT(hvd_sampler_info, struct_size, 0);
AT(hvd_sampler_info, epoch, 8);
AT(hvd_sampler_info, samples, 16);
AT(hvd_sampler_info, batch_size, 24);
AT(hvd_sampler_info, processed, 32);
AT(hvd_sampler_info, remaining, 40);
AT(hvd_sampler_info, rounds, 48);

SIZE(hvd_shard, 64);
AT(hvd_shard, struct_size, 0);
AT(hvd_shard, key, 8);
AT(hvd_shard, dtype, 16);
AT(hvd_shard, rank, 20);
AT(hvd_shard, size, 24);
AT(hvd_shard, reserved, 28);
AT(hvd_shard, global_elements, 32);
AT(hvd_shard, offset, 40);
AT(hvd_shard, elements, 48);
AT(hvd_shard, data, 56);

SIZE(hvd_launch, 40);
AT(hvd_launch, struct_size, 0);
AT(hvd_launch, worker, 8);
AT(hvd_launch, host, 16);
AT(hvd_launch, slot, 24);
AT(hvd_launch, environment, 32);

SIZE(hvd_driver_status_info, 1144);
AT(hvd_driver_status_info, struct_size, 0);
AT(hvd_driver_status_info, phase, 8);
AT(hvd_driver_status_info, size, 12);
AT(hvd_driver_status_info, workers, 16);
AT(hvd_driver_status_info, slots, 20);
AT(hvd_driver_status_info, resets, 24);
AT(hvd_driver_status_info, generation, 32);
AT(hvd_driver_status_info, membership_epoch, 40);
AT(hvd_driver_status_info, hosts_blocked, 48);
AT(hvd_driver_status_info, port, 52);
AT(hvd_driver_status_info, sentence, 56);
AT(hvd_driver_status_info, stall, 568);
AT(hvd_driver_status_info, try_again, 1080);
AT(hvd_driver_status_info, stalled, 1084);
AT(hvd_driver_status_info, term, 1088);
AT(hvd_driver_status_info, goodput, 1096);
AT(hvd_driver_status_info, commits_per_second, 1104);
AT(hvd_driver_status_info, commits, 1112);
AT(hvd_driver_status_info, sync_bytes, 1120);
AT(hvd_driver_status_info, wall_ns, 1128);
AT(hvd_driver_status_info, last_recovery_ns, 1136);

SIZE(hvd_backend_host, 56);
AT(hvd_backend_host, struct_size, 0);
AT(hvd_backend_host, context, 8);
AT(hvd_backend_host, log, 16);
AT(hvd_backend_host, message, 24);
AT(hvd_backend_host, failure, 32);
AT(hvd_backend_host, kv_set, 40);
AT(hvd_backend_host, kv_get, 48);

SIZE(hvd_backend_option, 16);
AT(hvd_backend_option, key, 0);
AT(hvd_backend_option, value, 8);

SIZE(hvd_backend_description, 64);
AT(hvd_backend_description, struct_size, 0);
AT(hvd_backend_description, name, 8);
AT(hvd_backend_description, version, 16);
AT(hvd_backend_description, memories, 24);
AT(hvd_backend_description, dtypes, 32);
AT(hvd_backend_description, collectives, 40);
AT(hvd_backend_description, messages, 48);
AT(hvd_backend_description, local, 52);
AT(hvd_backend_description, max_instances, 56);

SIZE(hvd_backend_member, 32);
AT(hvd_backend_member, worker, 0);
AT(hvd_backend_member, host, 8);
AT(hvd_backend_member, address, 16);
AT(hvd_backend_member, address_size, 24);

SIZE(hvd_backend_group, 40);
AT(hvd_backend_group, struct_size, 0);
AT(hvd_backend_group, generation, 8);
AT(hvd_backend_group, rank, 16);
AT(hvd_backend_group, size, 20);
AT(hvd_backend_group, members, 24);
AT(hvd_backend_group, timeout_ns, 32);

SIZE(hvd_backend_part, 24);
AT(hvd_backend_part, input, 0);
AT(hvd_backend_part, output, 8);
AT(hvd_backend_part, count, 16);

SIZE(hvd_backend_op, 128);
AT(hvd_backend_op, struct_size, 0);
AT(hvd_backend_op, collective, 8);
AT(hvd_backend_op, dtype, 12);
AT(hvd_backend_op, reduction, 16);
AT(hvd_backend_op, root, 20);
AT(hvd_backend_op, input, 24);
AT(hvd_backend_op, output, 32);
AT(hvd_backend_op, count, 40);
AT(hvd_backend_op, counts, 48);
AT(hvd_backend_op, ranks, 56);
AT(hvd_backend_op, rank_count, 64);
AT(hvd_backend_op, memory, 68);
AT(hvd_backend_op, device, 72);
AT(hvd_backend_op, stream, 80);
AT(hvd_backend_op, sequence, 88);
AT(hvd_backend_op, done, 96);
AT(hvd_backend_op, done_context, 104);
AT(hvd_backend_op, parts, 112);
AT(hvd_backend_op, part_count, 120);

SIZE(hvd_backend_copy, 24);
AT(hvd_backend_copy, target, 0);
AT(hvd_backend_copy, source, 8);
AT(hvd_backend_copy, size, 16);

SIZE(hvd_backend_table, 200);
AT(hvd_backend_table, struct_size, 0);
AT(hvd_backend_table, description, 8);
AT(hvd_backend_table, open, 72);
AT(hvd_backend_table, address, 80);
AT(hvd_backend_table, connect, 88);
AT(hvd_backend_table, submit, 96);
AT(hvd_backend_table, send_message, 104);
AT(hvd_backend_table, abort, 112);
AT(hvd_backend_table, disconnect, 120);
AT(hvd_backend_table, close, 128);
AT(hvd_backend_table, detail, 136);
AT(hvd_backend_table, world, 144);
AT(hvd_backend_table, world_broadcast, 152);
AT(hvd_backend_table, host_alloc, 160);
AT(hvd_backend_table, host_free, 168);
AT(hvd_backend_table, copy, 176);
AT(hvd_backend_table, copy_wait, 184);
AT(hvd_backend_table, copy_aside, 192);

IS(HVD_OK, 0);
IS(HVD_PEER_LOST, 1);
IS(HVD_HOSTS_UPDATED, 2);
IS(HVD_MISMATCH, 3);
IS(HVD_INVALID, 4);
IS(HVD_TIMEOUT, 5);
IS(HVD_CLOSED, 6);
IS(HVD_REMOVED, 7);
IS(HVD_DRIVER_LOST, 8);
IS(HVD_REFUSED, 9);
IS(HVD_UNAVAILABLE, 10);
IS(HVD_UNSUPPORTED, 11);
IS(HVD_CALLBACK_FAILED, 12);
IS(HVD_JOB_FAILED, 13);
IS(HVD_INTERNAL, 14);

IS(HVD_LOG_DEFAULT, 0);
IS(HVD_LOG_TRACE, 1);
IS(HVD_LOG_DEBUG, 2);
IS(HVD_LOG_INFO, 3);
IS(HVD_LOG_WARNING, 4);
IS(HVD_LOG_ERROR, 5);
IS(HVD_LOG_OFF, 6);

IS(HVD_DTYPE_UINT8, 1);
IS(HVD_DTYPE_INT8, 2);
IS(HVD_DTYPE_UINT16, 3);
IS(HVD_DTYPE_INT16, 4);
IS(HVD_DTYPE_UINT32, 5);
IS(HVD_DTYPE_INT32, 6);
IS(HVD_DTYPE_UINT64, 7);
IS(HVD_DTYPE_INT64, 8);
IS(HVD_DTYPE_FLOAT16, 9);
IS(HVD_DTYPE_BFLOAT16, 10);
IS(HVD_DTYPE_FLOAT32, 11);
IS(HVD_DTYPE_FLOAT64, 12);
IS(HVD_DTYPE_BOOL, 13);
IS(HVD_DTYPE_FLOAT8_E4M3FN, 14);
IS(HVD_DTYPE_FLOAT8_E5M2, 15);
IS(HVD_DTYPE_FLOAT8_E4M3FNUZ, 16);
IS(HVD_DTYPE_FLOAT8_E5M2FNUZ, 17);
IS(HVD_DTYPE_COMPLEX64, 18);
IS(HVD_DTYPE_COMPLEX128, 19);

IS(HVD_MEMORY_HOST, 0);
IS(HVD_MEMORY_CUDA, 1);

IS(HVD_SET_RULE_WORKERS, 1);
IS(HVD_SET_RULE_RANKS, 2);
IS(HVD_SET_RULE_LOCAL, 3);
IS(HVD_SET_RULE_CROSS, 4);
IS(HVD_SET_RULE_END, 5);

IS(HVD_COLLECTIVE_BROADCAST, 1);
IS(HVD_COLLECTIVE_ALLREDUCE, 2);
IS(HVD_COLLECTIVE_ALLGATHER, 3);
IS(HVD_COLLECTIVE_BARRIER, 4);
IS(HVD_COLLECTIVE_REDUCESCATTER, 5);
IS(HVD_COLLECTIVE_ALLTOALL, 6);
IS(HVD_COLLECTIVE_JOIN, 7);

IS(HVD_REDUCTION_SUM, 1);
IS(HVD_REDUCTION_AVERAGE, 2);
IS(HVD_REDUCTION_MIN, 3);
IS(HVD_REDUCTION_MAX, 4);
IS(HVD_REDUCTION_PRODUCT, 5);

IS(HVD_EVENT_HOSTS_UPDATED, 1);
IS(HVD_EVENT_PEER_LOST, 2);
IS(HVD_EVENT_GENERATION, 4);
IS(HVD_EVENT_JOB_ENDED, 8);
IS(HVD_EVENT_DRIVER_LOST, 16);
IS(HVD_EVENT_RECOVERED, 32);
IS(HVD_EVENT_STALLED, 64);
IS(HVD_EVENT_DIVERGED, 128);
IS(HVD_EVENT_DRIVER_BACK, 256);

IS(HVD_COLLECTIVE_BROADCAST_OBJECT, 8);
IS(HVD_COLLECTIVE_SEND, 9);
IS(HVD_COLLECTIVE_RECEIVE, 10);
IS(HVD_COLLECTIVE_REDUCE, 11);
IS(HVD_COLLECTIVE_GATHER, 12);
IS(HVD_COLLECTIVE_SCATTER, 13);

IS(HVD_PADDING_NONE, 0);
IS(HVD_PADDING_REPEAT, 1);
IS(HVD_PADDING_DROP, 2);

IS(HVD_PHASE_NEW, 0);
IS(HVD_PHASE_FORMING, 1);
IS(HVD_PHASE_RUNNING, 2);
IS(HVD_PHASE_ENDING, 3);
IS(HVD_PHASE_SUCCEEDED, 4);
IS(HVD_PHASE_FAILED, 5);

IS(HVD_DRIVER_FORMAT_TEXT, 0);
IS(HVD_DRIVER_FORMAT_JSON, 1);
IS(HVD_DRIVER_FORMAT_OPENMETRICS, 2);
IS(HVD_DRIVER_FORMAT_LINE, 3);

IS(HVD_VERSION_MAJOR, 0);
IS(HVD_VERSION_MINOR, 2);
IS(HVD_VERSION_PATCH, 0);
IS(HVD_ABI_VERSION, 1);
IS(HVD_MILLISECOND, 1000000);
IS(HVD_SECOND, 1000000000);
IS(HVD_DEFAULT_TIMEOUT, 0);
IS(HVD_MAX_DIMS, 8);
IS(HVD_EVENT_ALL, 4294967295u);
IS(HVD_SAMPLER_SAVED_BYTES, 64);
IS(HVD_NO_COPIES, -1);
IS(HVD_BACKEND_ABI_VERSION, 2);
