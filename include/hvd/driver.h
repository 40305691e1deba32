/* driver.h: embed the elastic driver. hvdrun is a thin user of this header.
 *
 * A driver discovers hosts, starts one worker per slot, and assigns ranks generation by generation. It
 * detects lost workers, notifies the others, and reports how the job ended. The rules for handles, errors
 * and structs are those of hvd.h. */
#ifndef HVD_DRIVER_H
#define HVD_DRIVER_H

#include "hvd/hvd.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvd_driver hvd_driver;

/* Makes a driver from options (np, min_np, max_np, hosts, discovery_script, ...: docs/options.md).
 * `options` may be NULL; it is not kept. The driver does not listen before hvd_driver_start. */
HVD_API hvd_status hvd_driver_create(const hvd_options *options, hvd_driver **ret_driver, hvd_error *error);

/* The program that the local launcher starts for each worker. argv[0] is looked up in PATH; argv is
 * NULL-terminated. `environment` (may be NULL) holds "NAME=value" strings that are added to this
 * process's. HVD_SECRET and HVD_SECRET_FILE are left out: each worker has a key of its own. Copied. */
HVD_API hvd_status hvd_driver_set_command(hvd_driver *driver, const char *const *argv,
                                          const char *const *environment, hvd_error *error);

/* Discovery by callback instead of option hosts or discovery_script. `discover` is called every
 * discovery_interval from a thread of its own. It calls add(sink, name, slots) for each host and returns 0.
 * Nonzero means that the hosts are not known now (fatal at the first call, retried later). A call that
 * outlasts discovery_timeout counts as failed, and its late answer is dropped. `add` returns 0, or nonzero
 * for a host that it refuses (no name, negative slots). The whole call then counts as failed, whatever it
 * returns. During the call, the thread and the processes that it starts have the same signals blocked as the
 * thread that set `discover` had then. */
typedef int32_t (*hvd_add_host_fn)(void *sink, const char *name, int32_t slots);
typedef int32_t (*hvd_discover_fn)(void *userdata, hvd_add_host_fn add, void *sink);
HVD_API hvd_status hvd_driver_set_discovery(hvd_driver *driver, hvd_discover_fn discover, void *userdata,
                                            hvd_destroy_fn destroy, hvd_error *error);

/* A worker to start. `environment` ("NAME=value", NULL-terminated) must reach the worker: it holds the
 * address, the identity and the secret. Borrowed for the call. */
typedef struct hvd_launch {
  size_t struct_size;
  uint64_t worker;
  const char *host;
  int32_t slot;
  const char *const *environment;
} hvd_launch;

/* Launch by callback instead of the local launcher. start returns 0, or nonzero if the worker can't be
 * started, which counts as a failure of the slot. stop asks the worker to end: force 0 politely, 1 at once.
 * Both are called from one thread of the library. It has the same signals blocked as the thread that set them
 * had then: a worker inherits these. Report the worker's end with hvd_driver_worker_exited. */
typedef int32_t (*hvd_launch_fn)(void *userdata, const hvd_launch *launch);
typedef void (*hvd_stop_fn)(void *userdata, uint64_t worker, int32_t force);
HVD_API hvd_status hvd_driver_set_launcher(hvd_driver *driver, hvd_launch_fn start, hvd_stop_fn stop,
                                           void *userdata, hvd_destroy_fn destroy, hvd_error *error);
/* exit_status as of waitpid: 0..255, or 256 + the signal's number. */
HVD_API hvd_status hvd_driver_worker_exited(hvd_driver *driver, uint64_t worker, int32_t exit_status,
                                            hvd_error *error);

/* Lines that workers of the local launcher print. `line` has no newline, and NULs are removed; is_stderr is 0
 * or 1; rank is -1 before the first generation. Without a callback, lines go to this process's stdout and
 * stderr, prefixed with "[rank] ". Called from one thread. hvd_driver_destroy waits two seconds for a call
 * that does not return; `destroy` is called after it has. */
typedef void (*hvd_output_fn)(void *userdata, int32_t rank, const char *host, int32_t slot,
                              int32_t is_stderr, const char *line);
HVD_API hvd_status hvd_driver_set_output(hvd_driver *driver, hvd_output_fn output, void *userdata,
                                         hvd_destroy_fn destroy, hvd_error *error);

/* Starts listening, discovery and workers, and returns. Once per driver. HVD_UNAVAILABLE: port taken,
 * first discovery failed, command not found. */
HVD_API hvd_status hvd_driver_start(hvd_driver *driver, hvd_error *error);

/* Waits until the job has ended and every worker is gone, at most timeout_ns (0: a day). HVD_OK if the
 * job succeeded; HVD_JOB_FAILED with the sentence that says why; HVD_TIMEOUT if it still runs. */
HVD_API hvd_status hvd_driver_wait(hvd_driver *driver, int64_t timeout_ns, hvd_error *error);

/* Ends the job: workers are told, then get SIGTERM, and after stop_grace SIGKILL. Returns at once;
 * hvd_driver_wait waits for the end. May be called from any thread. Called again, it kills the rest at
 * once. */
HVD_API hvd_status hvd_driver_stop(hvd_driver *driver, const char *reason, hvd_error *error);

/* Requests of an operator, or of a program that knows that a machine is about to go away. They may come from
 * any thread while the job runs, and return when the driver has accepted them. HVD_INVALID with the reason if
 * the driver can't do it.
 *
 * hvd_driver_drain drains a host: its workers leave as by hvd_leave, within timeout_ns (0: option
 * leave_timeout), and the host gets no others until it is undrained. A host that is not known now is
 * HVD_INVALID. `reason` may be NULL. */
HVD_API hvd_status hvd_driver_drain(hvd_driver *driver, const char *host, int64_t timeout_ns,
                                    const char *reason, hvd_error *error);
/* The host may be used again; workers that have not left yet stay. HVD_INVALID if it was not drained. */
HVD_API hvd_status hvd_driver_undrain(hvd_driver *driver, const char *host, hvd_error *error);
/* Sets the greatest number of workers from now on, from min_np to max_np: the driver starts more, or
 * those of the highest ranks leave. */
HVD_API hvd_status hvd_driver_scale(hvd_driver *driver, int32_t size, hvd_error *error);

typedef int32_t hvd_phase;
enum { HVD_PHASE_NEW = 0, HVD_PHASE_FORMING = 1, HVD_PHASE_RUNNING = 2, HVD_PHASE_ENDING = 3,
       HVD_PHASE_SUCCEEDED = 4, HVD_PHASE_FAILED = 5 };

typedef struct hvd_driver_status_info {
  size_t struct_size;
  hvd_phase phase;
  int32_t size;                 /* members of the current generation */
  int32_t workers;              /* alive, members or not */
  int32_t slots;                /* usable slots discovered now */
  int32_t resets;               /* generations formed after the first */
  uint64_t generation;
  uint64_t membership_epoch;
  int32_t hosts_blocked;
  int32_t port;                 /* listening port, 0 before start */
  char sentence[512];           /* how the job ended, or what it waits for */
  char stall[512];              /* newest report of an operation that some ranks have not called (also a
                                   warning in the log); "" if the current generation has none */
  int32_t try_again;            /* failed: 1 if the job may succeed at another time, for example with
                                   enough slots */
  int32_t stalled;              /* operations that wait for ranks for longer than stall_warning */
  uint64_t term;                /* number of this driver among the job's drivers; 0: none can take over
                                   from it */
  double goodput;               /* training time that commits have kept, over wall time: 0 to 1; -1: not
                                   known */
  double commits_per_second;    /* of the fastest member, over the last ten seconds */
  uint64_t commits;             /* of all workers together */
  uint64_t sync_bytes;          /* payload of states that workers have sent and received */
  int64_t wall_ns;              /* since the driver began, until the job ended */
  int64_t last_recovery_ns;     /* of the slowest member that has reported it; 0: none yet */
} hvd_driver_status_info;
HVD_API hvd_status hvd_driver_get_status(hvd_driver *driver, hvd_driver_status_info *ret_status,
                                         hvd_error *error);

/* Returns everything known about the job as text: hosts, workers, generations and their recoveries, goodput,
 * the last lines of the driver's log. hvdrun --http and `hvdrun ctl status` show the same; this is for a
 * program that has a server of its own. The text holds no secrets; docs/observability.md lists fields and
 * metrics. *ret_text is NUL-terminated UTF-8 (hvd_free). May be called from any thread. It takes time that
 * grows with the number of workers. It waits at most three seconds for the driver's thread, and then leaves
 * the workers out. HVD_INVALID: no such format. */
typedef int32_t hvd_driver_format;
enum { HVD_DRIVER_FORMAT_TEXT = 0,        /* for people: tables */
       HVD_DRIVER_FORMAT_JSON = 1,
       HVD_DRIVER_FORMAT_OPENMETRICS = 2, /* "application/openmetrics-text; version=1.0.0; charset=utf-8" */
       HVD_DRIVER_FORMAT_LINE = 3 };      /* for people: one line, without a newline */
HVD_API hvd_status hvd_driver_describe(hvd_driver *driver, hvd_driver_format format, char **ret_text,
                                       hvd_error *error);

/* Sends a command to a running driver, on any machine, as its operator, like `hvdrun ctl`. Options driver
 * (host:port) and secret name the driver, or address_file does: the file that the driver wrote by its own
 * option of that name. Verbs are the driver's: "help" lists them; "status" reports on the job (argument
 * "text", "json", "openmetrics" or "line"). `argument` may be NULL. Waits at most timeout_ns (0: 10 s).
 * *ret_text is the answer (hvd_free). No context or driver of this process takes part.
 *
 * HVD_INVALID: no such verb, or an argument that it does not take. HVD_DRIVER_LOST: not reachable.
 * HVD_REFUSED: wrong key. HVD_TIMEOUT: no answer. Otherwise the status with which the driver answers. */
HVD_API hvd_status hvd_driver_command(const hvd_options *options, const char *verb, const char *argument,
                                      int64_t timeout_ns, char **ret_text, hvd_error *error);

/* Stops the job if it runs, ends what the driver started, and frees the driver. Takes at most stop_grace
 * and a few seconds. NULL is allowed. From a callback of the driver it does nothing but log an error. */
HVD_API void hvd_driver_destroy(hvd_driver *driver);

/* An agent starts, watches and ends the workers of one host for a driver elsewhere (docs/hosts.md).
 * hvdrun --join is a thin user of these functions. */
typedef struct hvd_agent hvd_agent;

/* Makes an agent from options: driver (host:port; several, separated by commas, are tried in turn),
 * secret or secret_file, host, slots_per_host, agent_timeout, agent_spool, stop_grace. `options` may be
 * NULL; it is not kept. */
HVD_API hvd_status hvd_agent_create(const hvd_options *options, hvd_agent **ret_agent, hvd_error *error);

/* A command of this host's own, which takes precedence over the driver's; otherwise as
 * hvd_driver_set_command. Its workers get this process's environment instead of the driver's. */
HVD_API hvd_status hvd_agent_set_command(hvd_agent *agent, const char *const *argv,
                                         const char *const *environment, hvd_error *error);

/* Starts to connect, and returns. Once per agent. HVD_UNAVAILABLE: no hvd-guard. When the connection
 * breaks the agent connects again; its workers live on meanwhile, at most for agent_timeout. */
HVD_API hvd_status hvd_agent_start(hvd_agent *agent, hvd_error *error);

/* Waits until the agent has ended and its workers are gone, at most timeout_ns (0: a day). HVD_OK: the job
 * succeeded, or all workers have left after hvd_agent_drain. HVD_JOB_FAILED: the job failed. HVD_UNAVAILABLE:
 * the job lacked something that may be available later (slots). HVD_REFUSED: the driver refused the agent,
 * with its reason (wrong secret, job or version). HVD_DRIVER_LOST: agent_timeout passed without a driver.
 * HVD_CLOSED: hvd_agent_stop, or a drain that was cut short. HVD_TIMEOUT: the agent still runs. */
HVD_API hvd_status hvd_agent_wait(hvd_agent *agent, int64_t timeout_ns, hvd_error *error);

/* Ends the workers (SIGTERM, after stop_grace SIGKILL) and then the agent. Returns at once. May be called
 * from any thread. Called again, it kills the rest at once. */
HVD_API hvd_status hvd_agent_stop(hvd_agent *agent, const char *reason, hvd_error *error);

/* Drains the host before it goes away: its workers leave at their next commit, the others go on with live
 * values, and the agent ends when they have left. Workers that are still there after timeout_ns (0: option
 * leave_timeout) are ended as by hvd_agent_stop. Returns at once. May be called from any thread. Called
 * again, it does what hvd_agent_stop does. `reason` may be NULL. */
HVD_API hvd_status hvd_agent_drain(hvd_agent *agent, int64_t timeout_ns, const char *reason,
                                   hvd_error *error);

/* Kills what the agent started and frees it. NULL is allowed. */
HVD_API void hvd_agent_destroy(hvd_agent *agent);

#ifdef __cplusplus
}
#endif
#endif
