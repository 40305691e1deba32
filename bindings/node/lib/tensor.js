// Typed arrays as tensors: their own memory is what the library reads and writes.
import koffi from "koffi";
import { plain, structs, make } from "./abi.js";
import * as c from "./constants.js";
import { choice, shown } from "./errors.js";

const dtypes = {
  uint8: c.DTYPE_UINT8, int8: c.DTYPE_INT8, uint16: c.DTYPE_UINT16, int16: c.DTYPE_INT16, uint32: c.DTYPE_UINT32,
  int32: c.DTYPE_INT32, uint64: c.DTYPE_UINT64, int64: c.DTYPE_INT64, float16: c.DTYPE_FLOAT16,
  bfloat16: c.DTYPE_BFLOAT16, float32: c.DTYPE_FLOAT32, float64: c.DTYPE_FLOAT64, bool: c.DTYPE_BOOL,
};
const dtypeNames = new Map(Object.entries(dtypes).map(([name, value]) => [value, name]));
const arrayTypes = {
  uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array,
  uint64: BigUint64Array, int64: BigInt64Array, float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array,
  float64: Float64Array, bool: Uint8Array,
};
const dtypeOf = new Map(Object.entries(arrayTypes).filter(([name]) => !["float16", "bfloat16", "bool"].includes(name))
  .map(([name, type]) => [type, name]));
dtypeOf.set(Uint8ClampedArray, "uint8");
if (globalThis.Float16Array) {
  arrayTypes.float16 = globalThis.Float16Array;
  dtypeOf.set(globalThis.Float16Array, "float16");
}

/** A typed array with a shape and a dtype, where these are not one dimension and the array's own type. */
export class Tensor {
  constructor(data, { shape, dtype } = {}) {
    const own = ArrayBuffer.isView(data) ? dtypeOf.get(data.constructor) : undefined;
    if (own === undefined) {
      throw new TypeError(`tensor is ${shown(data)}: expected a typed array (Float32Array, BigInt64Array, ...)`);
    }
    if (data.buffer.resizable || data.buffer.growable) {
      throw new TypeError("tensor lies in a resizable buffer, whose memory may go: expected one of a fixed length");
    }
    this.data = data;
    this.dtype = dtype ?? own;
    const number = choice(this.dtype, dtypes, "dtype");
    const size = Number(plain.dtype_size(number));
    if (size !== data.BYTES_PER_ELEMENT) {
      throw new TypeError(`dtype ${this.dtype} has ${size} bytes: expected ${data.BYTES_PER_ELEMENT}, as the ` +
                          `elements of ${data.constructor.name}`);
    }
    this.shape = shape === undefined ? [data.length] : Array.from(shape);
    const fits = this.shape.length <= c.MAX_DIMS && this.shape.every((n) => Number.isSafeInteger(n) && n >= 0) &&
      this.shape.reduce((product, n) => product * n, 1) === data.length;
    if (!fits) {
      throw new RangeError(`shape is [${this.shape}]: expected up to ${c.MAX_DIMS} dimensions of ${data.length} elements in all`);
    }
    this.bytes = data.byteLength;
    this.address = koffi.address(data);
    Object.freeze(this.shape);
    Object.freeze(this);
  }

  /** Checks that the memory is still the array's: a buffer that was transferred is not. */
  check(what) {
    if (this.data.byteLength !== this.bytes || (this.bytes > 0 && koffi.address(this.data) !== this.address)) {
      throw new TypeError(`${what} has lost its memory (its buffer was transferred): expected ${this.bytes} bytes`);
    }
    return this;
  }

  native() {
    return make(structs.tensor, {
      data: this.bytes > 0 ? this.address : null, dtype: dtypes[this.dtype], ndim: this.shape.length,
      shape: [...this.shape, 0, 0, 0, 0, 0, 0, 0, 0].slice(0, 8),
    });
  }
}

export function tensor(value, what = "tensor") {
  try {
    return value instanceof Tensor ? value.check(what) : new Tensor(value);
  } catch (error) {
    error.message = error.message.replace(/^tensor/, what);
    throw error;
  }
}

export function tensors(values, what) {
  if (!Array.isArray(values)) throw new TypeError(`${what} is ${shown(values)}: expected an array of typed arrays`);
  return values.map((value, index) => tensor(value, `${what}[${index}]`));
}

/** A copy of what the library has allocated. */
export function copied(native) {
  const dtype = dtypeNames.get(native.dtype);
  const shape = Array.from(native.shape, Number).slice(0, native.ndim);
  const Type = arrayTypes[dtype];
  const data = new Type(shape.reduce((product, n) => product * n, 1));
  if (data.byteLength > 0) {
    new Uint8Array(data.buffer).set(new Uint8Array(koffi.view(native.data, data.byteLength)));
  }
  return new Tensor(data, { shape, dtype });
}
