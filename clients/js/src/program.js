// The program stet, from the package for this platform.

import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';

// find returns the path of the program, or undefined if its package is not installed.
function find() {
  const file = process.platform === 'win32' ? 'stet.exe' : 'stet';
  try {
    return createRequire(import.meta.url).resolve(`@stet-go/stet-${process.platform}-${process.arch}/bin/${file}`);
  } catch {
    return undefined;
  }
}

// run runs the program with these arguments, forwards signals to it, and ends as it ends.
// It returns false if there is no program.
export function run(args) {
  const path = find();
  if (path === undefined) return false;
  const child = spawn(path, args, { stdio: 'inherit' });
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
  child.on('error', (error) => {
    console.error(`stet: ${error.message}`);
    process.exit(1);
  });
  child.on('exit', (code, signal) => {
    if (signal === null) process.exit(code);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  });
  return true;
}

export const missing = () => `there is no program of stet for ${process.platform} on ${process.arch} here. There are programs for linux, darwin and win32 on x64 and arm64: `
  + 'install @stet-go/stet without --omit=optional. For other platforms, build it with Go: go install github.com/stet-go/stet/cmd/stet@latest';
