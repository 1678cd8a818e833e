;((__look) => {
  // Follows a JavaScript program under test: answers the calls of its check. Nothing here is trusted.
  THE_LINE
  const side = {
    hungUp: () => process.exit(0),
    promise: (place) => side.stand(place, false),
    stand: (place, callable) => {
      const value = callable
        ? (...args) => line.ask('call', place, args)
        : new Proxy({}, {
          get: (_, name) => (typeof name === 'string' ? line.ask('get', place, name) : undefined),
          set: (_, name, value) => (line.ask('set', place, name, value), true),
        });
      line.theirs.set(value, place);
      return value;
    },
    error: ([, message]) => new Error(message),
    act: (what, [place, ...rest], given, look) => {
      if (what === 'names') {
        const found = {};
        for (const name of place) {
          try {
            found[name] = look(name);
          } catch (error) {
            continue;
          }
        }
        return found;
      }
      if (what === 'put') return void line.merge(look(place), rest[0]);
      const value = given[place];
      if (what === 'call') return Reflect.apply(value, rest[2] === undefined ? rest[1] : look(rest[2]), rest[0]);
      if (what === 'construct') return Reflect.construct(value, rest[0]);
      if (what === 'get') return value[rest[0]];
      if (what === 'set') return void (value[rest[0]] = rest[1]);
      if (what === 'has') return rest[0] in value;
      if (what === 'keys') return Object.keys(value);
      if (what === 'iterate') return value[Symbol.iterator]();
      if (what === 'isIterable') return typeof value[Symbol.iterator] === 'function';
      if (what === 'instanceOf') return rest[0] instanceof value;
      if (what === 'await') return { later: value, resume: serve };
      throw new Error(what);
    },
  };
  const line = openLine(__look, side);
  function serve() {
    while (line.answer(line.receive()));
  }
  line.send(['ready']);
  serve();
})((__name) => eval(__name));
