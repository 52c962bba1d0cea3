// The frame of the console: the bar, the login, and the view that the address names.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { AgentPage } from "./agent";
import { AgentList } from "./agents";
import { baseUrl, needsToken, token } from "./api";
import { Files } from "./files";
import { Groups } from "./groups";
import { MeshView } from "./mesh";
import { Field } from "./parts";
import { linkTo, linkToSection, route, type Section, SECTIONS } from "./route";
import { Tools } from "./tools";

const HEALTH_MS = 15_000;
const TITLES: Record<Section, string> = { agents: "Agents", tools: "Tools", files: "Files", groups: "Groups", mesh: "Mesh" };

function Console() {
  const { section } = route.value;
  const isFirst = useRef(true);
  useEffect(() => {
    // What had the focus is gone, such as a dialog: the next Tab begins in the new view.
    if (!isFirst.current && document.activeElement === document.body) {
      document.getElementById("main")?.focus();
    }
    isFirst.current = false;
  }, [route.value]);
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
        {token.value && !needsToken.value && (
          <button type="button" class="quiet" onClick={() => ((token.value = ""), (needsToken.value = true))}>
            Log out
          </button>
        )}
      </header>
      <main id="main" tabIndex={-1}>
        {needsToken.value ? <Login /> : <View />}
      </main>
    </>
  );
}

/** What the address names. The panels of an agent are in its own page. */
function View() {
  const { section, agentId, itemId } = route.value;
  switch (section) {
    case "agents":
      return agentId ? <AgentPage key={agentId} agentId={agentId} /> : <AgentList />;
    case "tools":
      return <Tools key={itemId} toolId={itemId} />;
    case "files":
      return <Files key={itemId} folderId={itemId} />;
    case "groups":
      return <Groups key={itemId} groupId={itemId} />;
    case "mesh":
      return <MeshView />;
  }
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

function Login() {
  const [value, setValue] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    token.value = value.trim();
    // A header holds no other characters, so no call could be sent.
    needsToken.value = !/^[!-~]+$/.test(token.value);
  };
  return (
    <form class="card login" onSubmit={submit}>
      <h1>Log in</h1>
      {token.value && (
        <p class="problem" role="alert">
          The mesh does not accept this token. It may have expired.
        </p>
      )}
      <Field
        label="Token"
        hint="mnemesh tokens create makes one. The page keeps it in memory alone: a reload asks again."
      >
        {(id) => (
          <input
            id={id}
            type="password"
            autocomplete="off"
            required
            autoFocus
            value={value}
            onInput={(event) => setValue(event.currentTarget.value)}
          />
        )}
      </Field>
      <button type="submit" class="primary">
        Log in
      </button>
    </form>
  );
}

render(<Console />, document.getElementById("console")!);
