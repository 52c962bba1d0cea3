// The focus stays where a person works: if what has it goes away or is disabled, such as a button that was pressed, the
// browser would begin at the top of the page again.

const PLACES = "section, article, li, details, dialog, main, [tabindex]";

/** Keeps the focus within the elements of a page. */
export function keepFocus(root: HTMLElement): void {
  let last: HTMLElement | undefined;
  /** What the focused element is in, the nearest first. */
  let places: HTMLElement[] = [];
  root.addEventListener("focusin", ({ target }) => {
    last = target as HTMLElement;
    places = [];
    for (let place = last.parentElement?.closest<HTMLElement>(PLACES); place; place = place.parentElement?.closest<HTMLElement>(PLACES)) {
      places.push(place);
    }
  });
  const keep = () => {
    const active = document.activeElement;
    if (!last || (active && active !== document.body) || !document.hasFocus()) {
      return;
    }
    if (!last.isConnected) {
      focusPlace(places.find((place) => place.isConnected));
    } else if (!last.matches(":disabled")) {
      last.focus({ preventScroll: true });
    }
  };
  // A person who clicks beside the controls means to leave them.
  root.addEventListener("pointerdown", () => (last = undefined), { capture: true });
  new MutationObserver(keep).observe(root, {
    ...{ childList: true, subtree: true, attributes: true },
    attributeFilter: ["disabled"],
  });
}

function focusPlace(place: HTMLElement | undefined): void {
  if (!place) {
    return;
  }
  if (!place.hasAttribute("tabindex")) {
    place.tabIndex = -1;
    place.addEventListener("blur", () => place.removeAttribute("tabindex"), { once: true });
  }
  place.focus({ preventScroll: true });
}
