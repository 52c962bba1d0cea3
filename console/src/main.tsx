// The frame of the console: the bar, the login, and the view that the address names.

import { type FunctionComponent, render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { baseUrl, logIn, needsToken, token } from "./api";
import { Dialog } from "./dialog";
import { keepFocus } from "./focus";
import { Busy, Empty, ProblemBox, TextField } from "./parts";
import { linkTo, linkToSection, route, type Section, SECTIONS } from "./route";
import { escapeDirections } from "./visible";

const HEALTH_MS = 15_000;
const TITLES: Record<Section, string> = { agents: "Agents", tools: "Tools", files: "Files", groups: "Groups", mesh: "Mesh" };

const VIEWS = {
  list: lazy<object>(async () => (await import("./agents")).AgentList),
  agent: lazy<{ agentId: string }>(async () => (await import("./agent")).AgentPage),
  tools: lazy<{ itemId: string }>(async () => (await import("./tools")).Tools),
  files: lazy<{ itemId: string }>(async () => (await import("./files")).Files),
  groups: lazy<{ itemId: string }>(async () => (await import("./groups")).Groups),
  mesh: lazy<object>(async () => (await import("./mesh")).MeshView),
};

/** A view whose code is loaded when it is shown for the first time. */
function lazy<P extends object>(load: () => Promise<FunctionComponent<P>>): FunctionComponent<P> {
  let Loaded: FunctionComponent<P> | undefined;
  let loading: Promise<unknown> | undefined;
  return (props: P) => {
    const [hasFailed, setFailed] = useState(false);
    const [, redraw] = useState(false);
    // Not in an effect, which would wait for the first paint.
    loading ??= load().then((found) => (Loaded = found));
    useEffect(() => {
      loading!.then(
        () => redraw(true),
        () => setFailed(true),
      );
    }, []);
    if (Loaded) {
      return <Loaded {...props} />;
    }
    const problem = { reason: "", message: "This part of the page cannot be loaded.", next: "The mesh may have been updated." };
    return (
      <div class="page">
        {hasFailed ? <ProblemBox problem={problem} retry={() => location.reload()} /> : <Busy what="Loading" />}
      </div>
    );
  };
}

function Console() {
  const { section } = route.value;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => focusMain(event)}>
        Skip to the content
      </a>
      <header class="bar">
        <a class="brand" href={linkTo()}>
          <Mark /> mnemesh
        </a>
        <nav class="mesh-nav" aria-label="Mesh">
          {SECTIONS.map((name) => (
            <a key={name} href={linkToSection(name)} aria-current={name === section ? "true" : undefined}>
              {TITLES[name]}
            </a>
          ))}
        </nav>
        <Health />
        {isReader(token.value) && (
          <span class="tag" title="The token has the role reader: the mesh refuses changes and messages.">
            read only
          </span>
        )}
        {token.value && (
          <button type="button" class="quiet" onClick={() => location.reload()}>
            Log out
          </button>
        )}
      </header>
      <main id="main" tabIndex={-1}>
        <View />
      </main>
      {needsToken.value && <Login />}
    </>
  );
}

/** Whether a token of the key file names the role reader. The mesh decides what is allowed; this only tells a person. */
function isReader(jwt: string): boolean {
  try {
    const claims = jwt.split(".")[1]!.replaceAll("-", "+").replaceAll("_", "/");
    return (JSON.parse(atob(claims)) as { roles?: unknown }).roles?.toString() === "reader";
  } catch {
    return false;
  }
}

/** What the address names. The panels of an agent are in its own page. */
function View() {
  const { section, agentId, itemId } = route.value;
  switch (section) {
    case undefined:
      return <NotFound />;
    case "agents":
      return agentId ? <VIEWS.agent key={agentId} agentId={agentId} /> : <VIEWS.list />;
    case "mesh":
      return <VIEWS.mesh />;
    default: {
      const Shown = VIEWS[section];
      return <Shown key={`${section}/${itemId}`} itemId={itemId} />;
    }
  }
}

function NotFound() {
  return (
    <section class="page" aria-labelledby="not-found">
      <h1 id="not-found">Not found</h1>
      <Empty title="This address leads to no view of the console.">
        <p>
          It may be of another version. Begin with the <a href={linkTo()}>agents</a>.
        </p>
      </Empty>
    </section>
  );
}

/** The fragment is the address of the view, so a plain link to #main would leave it. */
function focusMain(event: Event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <path d="M6 24V9l10 9L26 9v15" />
    </svg>
  );
}

/** Whether the mesh is ready, asked again every few seconds while the page is visible. */
function Health() {
  const [state, setState] = useState<{ isReady: boolean; text: string }>();
  useEffect(() => {
    const ask = async () => {
      if (!document.hidden) {
        setState(await health());
      }
    };
    void ask();
    const timer = setInterval(() => void ask(), HEALTH_MS);
    return () => clearInterval(timer);
  }, []);
  return (
    <p class={`health ${state && !state.isReady ? "is-bad" : ""}`} role="status">
      {state && <span class="dot" aria-hidden="true" />}
      <span>{state?.text}</span>
    </p>
  );
}

async function health(): Promise<{ isReady: boolean; text: string }> {
  try {
    const [ready, live] = await Promise.all(["/readyz", "/livez"].map((path) => fetch(baseUrl + path)));
    const { version } = (await live!.json()) as { version: string };
    return ready!.ok
      ? { isReady: true, text: `mesh ready, version ${version}` }
      : { isReady: false, text: "the orchestrator does not answer: mnemesh status shows each service" };
  } catch {
    return { isReady: false, text: "the gateway does not answer: is the mesh running?" };
  }
}

/** Asks for a token over the page, which goes on with what it was about to do. */
function Login() {
  const [value, setValue] = useState("");
  const [isRefused, setRefused] = useState(token.value !== "");
  const submit = (event: Event) => {
    event.preventDefault();
    const entered = value.trim();
    // A header holds no other characters, so no call could be sent.
    setRefused(!/^[!-~]+$/.test(entered));
    if (/^[!-~]+$/.test(entered)) {
      logIn(entered);
    }
  };
  return (
    <Dialog title="Log in">
      <form onSubmit={submit}>
        {isRefused && (
          <p class="problem" role="alert">
            The mesh does not accept this token. It may have expired.
          </p>
        )}
        <TextField
          label="Token"
          hint="mnemesh tokens create makes one. The page keeps it in memory alone: a reload asks again."
          type="password"
          required
          autoFocus
          value={value}
          onChange={setValue}
        />
        <footer class="dialog-foot">
          <button type="submit" class="primary">
            Log in
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

const root = document.getElementById("console")!;
escapeDirections();
keepFocus(root);
render(<Console />, root);
