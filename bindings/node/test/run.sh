#!/usr/bin/env bash
# Runs the package's tests and its manual's example on a build tree: run.sh BUILD_DIR
# Status 77, "skipped": koffi could not be installed.
set -euo pipefail
build=$(realpath "${1:?run.sh needs the build directory}")
package=$(realpath "$(dirname "$0")/..")
copy=$build/node
mkdir -p "$copy"
cp -r "$package/." "$copy"
cd "$copy"
if [ ! -d node_modules/koffi ]; then
  npm install --no-audit --no-fund --no-package-lock >npm.log 2>&1 || { cat npm.log; echo "SKIPPED: npm could not install koffi"; exit 77; }
fi
export HVD_LIBRARY=$build/lib HVD_PLUGIN_PATH=$build/lib/hvd/1 HVD_TEST_HVDRUN=$build/bin/hvdrun
node --test test/*.test.mjs

# The manual's example.
awk '/^```js$/{inside = 1; next} /^```$/{inside = 0} inside' "$package/../../docs/node.md" >manual.mjs
"$build/bin/hvdrun" -np 2 -- node manual.mjs | tee manual.log
[ "$(grep -c 'of 2: y = 2.00x + 1.00' manual.log)" = 2 ] || { echo "docs/node.md: expected both ranks to print the line" >&2; exit 1; }

# Its types are those of the package.
node --input-type=module -e '
import { readFileSync } from "node:fs";
import * as hvd from "hvd";
const types = readFileSync("index.d.ts", "utf8");
for (const name of Object.keys(hvd)) {
  if (!new RegExp(`export (class|const|function) ${name}\\b`).test(types)) throw new Error(`index.d.ts lacks ${name}`);
}
for (const [name, type] of Object.entries({ Context: hvd.Context, State: hvd.State, ProcessSet: hvd.ProcessSet })) {
  const body = types.slice(types.indexOf(`export class ${name}`)).split("\n}\n")[0];
  for (const member of Object.getOwnPropertyNames(type.prototype)) {
    if (["constructor", "native", "blocking"].includes(member)) continue;
    if (!new RegExp(`\\b${member}\\b`).test(body)) throw new Error(`index.d.ts: class ${name} lacks ${member}`);
  }
}'
