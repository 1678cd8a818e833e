// The line between a JavaScript program and its check: calls both ways, data by content, the rest by number.
// Frames are JSON behind eight digits of length; containers have numbers, so that what a call changes is seen.
function openLine(look, side) {
  const fs = require('fs');
  const given = [];
  const places = new Map();
  const stringify = JSON.stringify, parse = JSON.parse;
  const theirs = new WeakMap();

  function read(size) {
    const data = Buffer.alloc(size);
    let at = 0;
    while (at < size) {
      let got = 0;
      try {
        got = fs.readSync(3, data, at, size - at, null);
      } catch (error) {
        if (error.code === 'EAGAIN') continue;
      }
      if (got === 0) return null;
      at += got;
    }
    return data;
  }
  function receive() {
    const head = read(8);
    const size = head === null ? NaN : Number(head.toString());
    const body = size >= 0 && size <= 1 << 26 ? read(size) : null;
    if (body === null) side.hungUp();
    return parse(body.toString());
  }
  function send(frame) {
    const body = Buffer.from(stringify(frame));
    let data = Buffer.concat([Buffer.from(String(body.length).padStart(8, '0')), body]);
    while (data.length) {
      try {
        data = data.subarray(fs.writeSync(3, data));
      } catch (error) {
        if (error.code !== 'EAGAIN') side.hungUp();
      }
    }
  }
  function give(value) {
    if (!places.has(value)) places.set(value, given.push(value) - 1);
    return places.get(value);
  }
  function table() {
    const all = [], numbers = new Map();
    const add = (value) => (numbers.set(value, all.length), all.push(value) - 1);
    function content(value) {
      if (Array.isArray(value)) return Array.from(value, encode);
      if (value instanceof Map) return [...value].map(([key, one]) => [encode(key), encode(one)]);
      if (value instanceof Set) return [...value].map(encode);
      return Object.keys(value).map((key) => [key, encode(value[key])]);
    }
    function encode(value) {
      if (value === null || ['boolean', 'string'].includes(typeof value)) return value;
      if (typeof value === 'number') {
        return Number.isFinite(value) && !Object.is(value, -0) ? value : ['number', Object.is(value, -0) ? '-0' : String(value)];
      }
      if (value === undefined) return ['undefined'];
      if (typeof value === 'bigint') return ['bigint', String(value)];
      if (theirs.has(value)) return ['yours', theirs.get(value)];
      if (numbers.has(value)) return ['ref', numbers.get(value)];
      if (value instanceof Date) return ['date', value.getTime()];
      const proto = typeof value === 'object' ? Object.getPrototypeOf(value) : undefined;
      for (const [name, own] of [['array', Array.prototype], ['map', Map.prototype], ['set', Set.prototype], ['object', Object.prototype], ['object', null]]) {
        if (proto === own) return [name, add(value), content(value)];
      }
      if (value instanceof Promise) return ['promise', give(value)];
      return ['handle', give(value), typeof value === 'function'];
    }
    function fill(value, items) {
      if (Array.isArray(value)) items.forEach((one) => value.push(decode(one)));
      else if (value instanceof Map) items.forEach(([key, one]) => value.set(decode(key), decode(one)));
      else if (value instanceof Set) items.forEach((one) => value.add(decode(one)));
      else items.forEach(([key, one]) => Object.defineProperty(value, key, { value: decode(one), writable: true, enumerable: true, configurable: true }));
    }
    function decode(wire) {
      if (!Array.isArray(wire)) return wire;
      const [kind, first, second] = wire;
      if (kind === 'number') return Number(first);
      if (kind === 'undefined') return undefined;
      if (kind === 'bigint') return BigInt(first);
      if (kind === 'date') return new Date(first);
      if (kind === 'ref') return all[first];
      if (kind === 'yours') return given[first];
      if (kind === 'promise') return side.promise(first);
      if (kind === 'handle') return side.stand(first, second);
      const value = { array: () => [], map: () => new Map(), set: () => new Set(), object: () => ({}) }[kind]();
      add(value);
      fill(value, second);
      return value;
    }
    const changes = (count) => all.slice(0, count).map(content);
    function apply(list) {
      list.forEach((items, number) => {
        const value = all[number];
        if (Array.isArray(value)) value.length = 0;
        else if (value instanceof Map || value instanceof Set) value.clear();
        else Object.keys(value).forEach((key) => delete value[key]);
        fill(value, items);
      });
    }
    return { encode, decode, changes, apply, all };
  }
  function kindOf(value) {
    if (Object(value) !== value || typeof value === 'function' || theirs.has(value)) return undefined;
    const proto = Object.getPrototypeOf(value);
    if (proto === null) return Object.prototype;
    return [Array.prototype, Map.prototype, Set.prototype, Object.prototype].includes(proto) ? proto : undefined;
  }
  // Gives a container the content of another, and keeps what it holds where that is of the same kind.
  function merge(old, now, done = new Map()) {
    const kind = kindOf(now);
    if (kind === undefined || kind !== kindOf(old)) return now;
    if (done.has(now)) return done.get(now);
    done.set(now, old);
    if (kind === Array.prototype) {
      const items = now.map((one, place) => merge(old[place], one, done));
      old.length = 0;
      items.forEach((one) => old.push(one));
    } else if (kind === Map.prototype) {
      const items = [...now].map(([key, one]) => [key, merge(old.get(key), one, done)]);
      old.clear();
      items.forEach(([key, one]) => old.set(key, one));
    } else if (kind === Set.prototype) {
      old.clear();
      now.forEach((one) => old.add(one));
    } else {
      Object.keys(old).forEach((key) => Object.hasOwn(now, key) || delete old[key]);
      Object.keys(now).forEach((key) => Object.defineProperty(old, key, { value: merge(old[key], now[key], done), writable: true, enumerable: true, configurable: true }));
    }
    return old;
  }
  function failure(error) {
    const known = error instanceof Error;
    return [known ? String(error.name) : '', known ? String(error.message) : String(error), known ? give(error) : -1];
  }
  function answer(frame) {
    const one = table();
    try {
      const values = frame[2].map(one.decode);
      const count = one.all.length;
      const found = side.act(frame[1], values, given, look);
      if (found !== undefined && found !== null && found.later) {
        found.later.then(
          (value) => (send(['answer', 'ok', one.encode(value), one.changes(count)]), found.resume()),
          (error) => (send(['answer', 'error', failure(error), []]), found.resume()),
        );
        return false;
      }
      send(['answer', 'ok', one.encode(found), one.changes(count)]);
    } catch (error) {
      send(['answer', 'error', failure(error), []]);
    }
    return true;
  }
  function ask(what, ...values) {
    const one = table();
    const sent = values.map(one.encode);
    send(['ask', what, sent]);
    for (;;) {
      const frame = receive();
      if (frame[0] === 'ask') {
        answer(frame);
        continue;
      }
      if (frame[1] === 'ok') {
        const found = one.decode(frame[2]);
        one.apply(frame[3]);
        return found;
      }
      throw side.error(frame[2], theirs);
    }
  }
  const snapshot = (value) => stringify(table().encode(value));
  return { ask, answer, send, receive, theirs, merge, isPlain: (value) => kindOf(value) !== undefined, snapshot };
}
