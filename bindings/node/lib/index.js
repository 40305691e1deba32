// Elastic distributed training: libhvd for Node. docs/node.md is the manual.
export { libraryPath, version } from "./abi.js";
export { Context, ProcessSet } from "./context.js";
export { HvdError, Status } from "./errors.js";
export { State, run } from "./state.js";
export { Tensor } from "./tensor.js";
