// What the library reports, as an exception; and the checks that need no library.
import * as c from "./constants.js";

/** Values of hvd_status. */
export const Status = Object.freeze({
  OK: c.OK, PEER_LOST: c.PEER_LOST, HOSTS_UPDATED: c.HOSTS_UPDATED, MISMATCH: c.MISMATCH, INVALID: c.INVALID,
  TIMEOUT: c.TIMEOUT, CLOSED: c.CLOSED, REMOVED: c.REMOVED, DRIVER_LOST: c.DRIVER_LOST, REFUSED: c.REFUSED,
  UNAVAILABLE: c.UNAVAILABLE, UNSUPPORTED: c.UNSUPPORTED, CALLBACK_FAILED: c.CALLBACK_FAILED,
  JOB_FAILED: c.JOB_FAILED, INTERNAL: c.INTERNAL,
});
const names = new Map(Object.entries(Status).map(([name, value]) => [value, `HVD_${name}`]));

export class HvdError extends Error {
  constructor(where, status, details) {
    const code = names.get(status) ?? `HVD_STATUS_${status}`;
    super(`${where}: ${code}: ${details.message}`);
    this.name = "HvdError";
    this.status = status;
    this.code = code;
    this.rank = details.rank;
    this.generation = Number(details.generation);
    this.backend = details.backend;
    this.vendorCode = Number(details.vendor_code);
  }
}

export function fail(where, status, details) {
  throw new HvdError(where, status, details);
}

/** "a string of length 3", "-1": how a value is shown that is not what was expected. */
export function shown(value) {
  if (typeof value === "string") return JSON.stringify(value.length > 60 ? `${value.slice(0, 60)}...` : value);
  if (typeof value === "bigint") return `${value}n`;
  if (value === null || typeof value !== "object") return String(value);
  const kind = value.constructor?.name ?? "object";
  return "length" in value ? `${kind} of length ${value.length}` : kind;
}

/** Text that C can take: a NUL would cut it. */
export function text(value, what) {
  if (typeof value !== "string") throw new TypeError(`${what} is ${shown(value)}: expected a string`);
  if (value.includes("\0")) throw new RangeError(`${what} is ${shown(value)}: expected no NUL in it`);
  return value;
}

export function integer(value, what, low, high) {
  if (typeof value !== "number") throw new TypeError(`${what} is ${shown(value)}: expected an integer`);
  if (!Number.isInteger(value) || value < low || value > high) {
    throw new RangeError(`${what} is ${shown(value)}: expected an integer from ${low} to ${high}`);
  }
  return value;
}

export function number(value, what) {
  if (typeof value !== "number") throw new TypeError(`${what} is ${shown(value)}: expected a number`);
  if (!Number.isFinite(value)) throw new RangeError(`${what} is ${shown(value)}: expected a finite number`);
  return value;
}

/** Milliseconds, Node's unit, as the library's nanoseconds. undefined is the library's default. */
export function nanoseconds(value, what) {
  if (value === undefined) return 0n;
  const longest = 365 * 24 * 3600e3;
  if (typeof value !== "number") throw new TypeError(`${what} is ${shown(value)}: expected milliseconds`);
  if (!(value > 0 && value <= longest)) {
    throw new RangeError(`${what} is ${shown(value)}: expected milliseconds, more than 0 and at most ${longest}`);
  }
  return BigInt(Math.max(1, Math.round(value * 1e6)));
}

export function choice(value, table, what) {
  if (!Object.hasOwn(table, value)) {
    throw new RangeError(`${what} is ${shown(value)}: expected one of ${Object.keys(table).join(", ")}`);
  }
  return table[value];
}

/** Options by name: one that is unknown is a mistake. */
export function options(value, known, what) {
  if (value === undefined) return {};
  if (value === null || typeof value !== "object") throw new TypeError(`${what} is ${shown(value)}: expected an object`);
  for (const name of Object.keys(value)) {
    if (!known.includes(name)) throw new TypeError(`${what} has ${shown(name)}: expected ${known.join(", ")}`);
  }
  return value;
}
