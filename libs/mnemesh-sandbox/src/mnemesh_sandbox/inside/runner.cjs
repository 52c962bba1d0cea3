// Executes one task in Node. Reads the task as JSON from stdin and writes the result as JSON to a pipe.
// Started with `node --eval`; `configuration` is defined in front of this text.
'use strict';

const fs = require('node:fs');
const inspect = require('node:util').inspect;
const nodeModule = require('node:module');

// The code of the task can replace every global and every prototype; what is needed after it is kept here.
const { parse, stringify } = JSON;
const { isArray } = Array;
const create = Object.create;
const text = String;
const NodeError = Error;
const NativeMap = Map;
const NativeSet = Set;
const NativePromise = Promise;
const fromArray = Array.from;
const slice = Function.prototype.call.bind(String.prototype.slice);
const exit = process.reallyExit.bind(process);
const write = fs.writeSync;
const stderr = blocking(process.stderr).write.bind(process.stderr);

const MAX_ERROR_CHARS = 1000;
const MAX_TRACE_CHARS = 8000;
const MAX_CALL_CHARS = 1048576;
let answered = false;
let idle = false;
let agent = null;

// Without this, Node queues what a full pipe does not take, and loses it when the process is ended.
function blocking(stream) {
  stream._handle?.setBlocking?.(true);
  return stream;
}

function blockStdout() {
  const { get, ...rest } = Object.getOwnPropertyDescriptor(process, 'stdout');
  // The stream is created at its first use, as in Node: most tasks write nothing.
  Object.defineProperty(process, 'stdout', { ...rest, get: () => blocking(get.call(process)) });
}

function send(answer) {
  if (answered) return;
  answered = true;
  let data = Buffer.from(stringify(answer));
  while (data.length > 0) {
    try {
      data = data.subarray(write(configuration.resultFd, data));
    } catch (error) {
      if (error.code !== 'EAGAIN') return; // the task closed the pipe; the server reports that there is no result
    }
  }
}

function frame(fields) {
  // Without a prototype, because that of objects may have a method toJSON now.
  const result = create(null);
  for (const name of Object.keys(fields)) result[name] = fields[name];
  return result;
}

function shown(value) {
  try {
    return text(value);
  } catch {
    return '';
  }
}

// Node and V8 report an allocation that the limits of the process refuse as a RangeError.
function isOutOfMemory(error) {
  return error.code === 'ERR_MEMORY_ALLOCATION_FAILED' || error.message === 'Array buffer allocation failed';
}

function fail(error) {
  let kind = 'Error';
  let message = '';
  try {
    const isError = error instanceof NodeError || (typeof error === 'object' && error !== null && 'message' in error);
    kind = isError ? (isOutOfMemory(error) ? 'MemoryError' : shown(error.name || 'Error')) : 'Error';
    message = isError ? shown(error.message) : typeof error === 'string' ? error : inspect(error);
    const cause = isError && error.cause instanceof NodeError ? error.cause : null;
    if (cause !== null) message += `: ${shown(cause.message || cause.code)}`;
    if (isError && error.stack) stderr(`${trace(shown(error.stack))}\n`);
  } catch {
    // the error itself is hostile; its kind is enough
  }
  send(frame({ ok: false, kind: slice(kind, 0, 200), text: slice(message, 0, MAX_ERROR_CHARS) }));
}

// Frames of this file and of Node do not help the author of the task.
function trace(stack) {
  const lines = stack.split('\n').filter((line) => !/\[eval|node:internal|^\s+at .*node:module/.test(line));
  return lines.join('\n').replaceAll(configuration.url, configuration.file).slice(0, MAX_TRACE_CHARS);
}

function plain(_, value) {
  if (typeof value === 'bigint' || typeof value === 'symbol' || typeof value === 'function') return text(value);
  if (value instanceof NativeMap) {
    const entries = create(null);
    for (const [key, item] of value) entries[shown(key)] = item;
    return entries;
  }
  if (value instanceof NativeSet) return fromArray(value);
  return value;
}

// A string unchanged, undefined and null as "", others as JSON if possible.
function resultText(value) {
  if (value === undefined || value === null) return '';
  if (typeof value === 'string') return value;
  if (typeof value !== 'object' && typeof value !== 'number' && typeof value !== 'boolean') return shown(value);
  try {
    const json = stringify(value, plain);
    return json === undefined ? shown(value) : json;
  } catch {
    return inspect(value, { depth: 4 }); // a circular value, for example
  }
}

function succeed(value) {
  const full = resultText(value);
  const parts = isArray(value) ? value : [value];
  // A result with images can be longer, as in the runner for Python.
  const hasImage = parts.some((part) => part !== null && typeof part === 'object' && part.type === 'image');
  const longest = configuration.outputChars * (hasImage ? 4 : 1);
  const blocks = agent === null ? create(null) : agent.changes();
  send(frame({ ok: true, text: slice(full, 0, longest), chars: full.length, blocks }));
}

// The agent as a tool sees it.
function agentState(view) {
  const blocks = new NativeMap();
  for (const label of Object.keys(view.blocks)) {
    const { description = null, limit = null } = view.properties[label] ?? {};
    blocks.set(label, { label, value: view.blocks[label], description, limit });
  }
  const found = (label) => {
    if (!blocks.has(label)) throw new NodeError(`Block ${label} does not exist (blocks: ${[...blocks.keys()].join(', ')})`);
    return blocks.get(label);
  };
  const memory = {
    get blocks() {
      return [...blocks.values()];
    },
    list_block_labels: () => [...blocks.keys()],
    get_block: found,
    update_block_value(label, value) {
      if (typeof value !== 'string') throw new TypeError('The value must be a string');
      found(label).value = value;
    },
  };
  const changes = () => {
    const changed = create(null);
    for (const { label, value } of blocks.values()) if (shown(value) !== view.blocks[label]) changed[label] = shown(value);
    return changed;
  };
  return { state: { id: view.id, agent_id: view.id, name: view.name, memory }, changes };
}

// The tools that a program can call. Each call is a line on one pipe, each answer a line on another.
function toolFunctions(tools) {
  const waiting = new NativeMap();
  let last = 0;
  let rest = '';
  let replies = null;

  function closed() {
    for (const { reject } of waiting.values()) reject(new NodeError('Tools cannot be called any more'));
    waiting.clear();
  }

  function received(chunk) {
    rest += chunk;
    const lines = rest.split('\n');
    rest = lines.pop();
    for (const line of lines) settle(parse(line));
    if (waiting.size === 0) replies.unref(); // else a promise that nothing resolves would not be seen
  }

  function read() {
    if (replies === null) {
      const { Socket } = require('node:net');
      replies = new Socket({ fd: configuration.repliesFd, readable: true, writable: false });
      replies.setEncoding('utf8').on('data', received).on('error', closed).on('close', closed);
    }
    replies.ref();
  }

  function settle(reply) {
    const call = waiting.get(reply.id);
    if (call === undefined) return;
    waiting.delete(reply.id);
    if (reply.ok) call.resolve(reply.value);
    else call.reject(Object.assign(new NodeError(reply.value), { name: 'ToolError' }));
  }

  const functions = create(null);
  for (const [name, parameters] of Object.entries(tools)) {
    functions[name] = (...given) => {
      const first = given[0];
      const isNamed = given.length === 1 && typeof first === 'object' && first !== null && !isArray(first);
      if (!isNamed && given.length > parameters.length) {
        throw new TypeError(`${name} takes ${parameters.length} arguments, not ${given.length}`);
      }
      const named = isNamed ? first : Object.fromEntries(given.map((value, index) => [parameters[index], value]));
      last += 1;
      const id = last;
      const line = `${stringify({ id, name, arguments: named }, plain)}\n`;
      if (line.length > MAX_CALL_CHARS) throw new RangeError(`The arguments of ${name} are too long`);
      return new NativePromise((resolve, reject) => {
        waiting.set(id, { resolve, reject });
        let data = Buffer.from(line);
        try {
          while (data.length > 0) data = data.subarray(write(configuration.callsFd, data));
        } catch {
          waiting.delete(id);
          reject(new NodeError('Tools cannot be called any more'));
          return;
        }
        read();
      });
    };
  }
  return functions;
}

// TypeScript becomes JavaScript by the removal of its types, which keeps the positions. Enums need a transformation.
function javascript(source, language) {
  if (language !== 'typescript') return source;
  try {
    return nodeModule.stripTypeScriptTypes(source);
  } catch (error) {
    if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw error;
    return nodeModule.stripTypeScriptTypes(source, { mode: 'transform' });
  }
}

function prepare(task) {
  for (const name of Object.keys(process.env)) delete process.env[name];
  Object.assign(process.env, task.environment, configuration.environment);
  const source = javascript(task.source, task.language);
  // The module has a URL beside the installed packages, where its imports are looked up, and no file.
  nodeModule.registerHooks({
    resolve: (specifier, context, next) =>
      specifier === configuration.url ? { url: specifier, format: 'module', shortCircuit: true } : next(specifier, context),
    load: (url, context, next) =>
      url === configuration.url ? { format: 'module', source, shortCircuit: true } : next(url, context),
  });
  // Each worker reserves more addresses for its machine code than the limit of the process allows, and ends it.
  require('node:worker_threads').Worker = class {
    constructor() {
      throw new NodeError('Worker threads are not available');
    }
  };
  nodeModule.syncBuiltinESMExports();
  globalThis.require = nodeModule.createRequire(configuration.url);
  delete globalThis.module;
  delete globalThis.exports;
}

async function call(task, functions) {
  Object.assign(globalThis, functions);
  const namespace = await import(configuration.url);
  if (task.is_program) return namespace.default;
  const given = task.arguments;
  if (task.takes_object) return await namespace[configuration.export](given);
  const values = task.parameters.map((name) => (name === 'agent_state' && agent !== null ? agent.state : given[name]));
  return await namespace[configuration.export](...values);
}

function main() {
  if (configuration.waits) javascript('let loaded: 1', 'typescript'); // the first removal of types loads its program
  const input = fs.readFileSync(0, 'utf8');
  if (input === '') return; // the server has no task for this process
  const task = parse(input);
  if (task.agent !== null) agent = agentState(task.agent);
  const finish = (work) => (value) => {
    work(value);
    exit(0);
  };
  process.on('uncaughtException', finish(fail));
  process.on('beforeExit', () => {
    idle = true;
  });
  process.on('exit', (code) => {
    if (task.is_program && !idle && code === 0) succeed(undefined);
    else if (idle || code === 13) send(frame({ ok: false, kind: 'PromiseError', text: 'it waits for a promise that nothing resolves' }));
    else send(frame({ ok: false, kind: 'SystemExit', text: `process.exit(${code}) was called before it returned` }));
  });
  try {
    blockStdout();
    prepare(task);
    call(task, toolFunctions(task.tools)).then(finish(succeed), finish(fail));
  } catch (error) {
    finish(fail)(error);
  }
}

main();
