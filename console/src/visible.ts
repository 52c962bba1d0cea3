// Characters that change the direction of what follows them, and control characters, are shown by their codes: a name
// such as "invoice<U+202E>fdp.exe" is not what it seems. What is typed stays as it is.

import { options, type VNode } from "preact";

// The embeddings, overrides and isolates of Unicode, and all controls but tab, line feed and carriage return.
const HIDDEN = /[\u202a-\u202e\u2066-\u2069\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g;
const ATTRIBUTES = ["title", "aria-label", "alt", "label", "placeholder"];

/** Returns a text in which such characters are readable. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (character) => `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function shown(child: unknown): unknown {
  return typeof child === "string" ? visible(child) : Array.isArray(child) ? child.map(shown) : child;
}

/** Does so for the texts and labels of all elements that the page creates from now on. */
export function escapeDirections(): void {
  const before = options.vnode;
  options.vnode = (vnode: VNode) => {
    if (typeof vnode.type === "string") {
      const props = vnode.props as Record<string, unknown>;
      props.children = shown(props.children);
      for (const name of ATTRIBUTES) {
        if (typeof props[name] === "string") {
          props[name] = visible(props[name]);
        }
      }
    }
    before?.(vnode);
  };
}
