// The dashboard: assembles the panels. Live data arrives over MQTT (connection.js), other data from the API (api.js).

import { ask, useCredentials } from "./api.js";
import { Clients } from "./clients.js";
import { Connection } from "./connection.js";
import { detail } from "./detail.js";
import { byId, eachFrame, repeat, setText } from "./dom.js";
import { Figures, about, table, tiles } from "./figures.js";
import { Past } from "./past.js";
import { Pipelines } from "./pipelines.js";
import { plots } from "./plots.js";
import { publishing } from "./publish.js";
import { Quotas } from "./quotas.js";
import { Readers } from "./readers.js";
import { Streams } from "./streams.js";
import { tabs } from "./tabs.js";
import { complaint } from "./topics.js";
import { Tree } from "./tree.js";
import { Viewer } from "./viewer.js";

const RETRY_MILLISECONDS = 2000;
const STATES = {
  connecting: "Connecting",
  connected: "Connected",
  lost: "Not connected, trying again",
  refused: "Log-in needed",
  alone: "Not connected",
};

const LOOPBACK = /^(localhost|.*\.localhost|127\..*|\[::1\])$/; // browsers trust these without TLS

/** Request the URL of the broker's WebSocket, until the broker answers. */
async function findBroker() {
  for (;;) {
    try {
      return await ask("broker");
    } catch (error) {
      showState("lost", error.message);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MILLISECONDS));
    }
  }
}

/** The WebSocket's URL with the host name that this page was loaded from. */
function reachable(url) {
  const found = new URL(url);
  found.hostname = location.hostname;
  return found.href;
}

function showState(state, reason = null) {
  setText(byId("state"), reason ? `${STATES[state]}: ${reason}` : STATES[state]);
  byId("state-dot").dataset.state = state;
  document.documentElement.dataset.connection = state;
}

/**
 * Call `forget` when another user logs in, whose rights may differ, and `welcome` once the broker has accepted
 * that user.
 */
function whenSomebodyElse(connection, forget, welcome = () => {}) {
  let expected = false;
  connection.addEventListener("state", ({ detail: { state } }) => {
    if (state === "connecting") {
      expected = true;
      forget();
    } else if (state === "connected" && expected) {
      expected = false;
      welcome();
    }
  });
}

function viewing(connection) {
  const filterField = byId("viewer-filter");
  let follower = null;
  const openSide = tabs(byId("tab-detail").parentElement);
  const fill = publishing(connection);
  const show = detail((message) => {
    fill(message);
    openSide("tab-publish");
    byId("publish-topic").focus();
  });
  const viewer = new Viewer(byId("rows"), {
    empty: byId("rows-empty"),
    count: byId("viewer-count"),
    leftOut: byId("viewer-left-out"),
    note: byId("viewer-note"),
    chosen: (message) => {
      openSide("tab-detail");
      show(message);
    },
  });
  let filter = filterField.value;
  const past = new Past(viewer, () => filter);

  const follow = () => {
    if (follower !== null) connection.unfollow(follower);
    follower = null;
    viewer.clear();
    if (!viewer.live) return;
    follower = connection.follow(
      filter,
      (topic, payload, packet) => viewer.take(topic, payload, packet),
      (reason) => viewer.say(`Refused: ${reason}`),
    );
  };
  const apply = (wanted) => {
    const wrong = complaint(wanted);
    if (wrong !== null) {
      viewer.say(wrong);
      return;
    }
    filter = filterField.value = wanted;
    if (viewer.live) follow();
    else past.again();
  };
  byId("viewer-form").addEventListener("submit", (event) => {
    event.preventDefault();
    apply(filterField.value.trim());
  });
  byId("clear").addEventListener("click", () => viewer.clear());
  byId("pause").addEventListener("click", () => {
    viewer.pause(!viewer.paused);
    byId("pause").setAttribute("aria-pressed", viewer.paused);
    setText(byId("pause"), viewer.paused ? "Resume" : "Pause");
  });
  tabs(byId("tab-live").parentElement, (tab) => {
    viewer.live = tab === "tab-live";
    past.leave();
    follow();
    if (!viewer.live) past.open();
  });
  whenSomebodyElse(
    connection,
    () => {
      viewer.clear();
      show(null);
    },
    () => viewer.live || past.again(),
  );
  return { apply, past };
}

function topicTree(connection, chosen) {
  let follower = null;
  const tree = new Tree(byId("tree"), {
    empty: byId("tree-empty"),
    count: byId("tree-count"),
    note: byId("tree-note"),
    chosen,
  });
  const follow = (filter) => {
    if (follower !== null) connection.unfollow(follower);
    tree.clear();
    const wrong = complaint(filter);
    if (wrong !== null) {
      tree.refuse(wrong);
      return;
    }
    follower = connection.follow(
      filter,
      (topic, payload, packet) => tree.take(topic, payload, packet),
      (reason) => tree.refuse(reason),
    );
  };
  byId("tree-form").addEventListener("submit", (event) => {
    event.preventDefault();
    follow(byId("tree-filter").value.trim());
  });
  follow(byId("tree-filter").value);
  whenSomebodyElse(connection, () => tree.clear());
}

function brokerFigures(connection) {
  const figures = new Figures();
  plots(figures);
  const showTiles = tiles(byId("tiles"), figures);
  const showTable = table(byId("figures"), figures);
  figures.addEventListener(
    "value",
    eachFrame(() => {
      showTiles();
      if (!byId("figures").hidden) showTable();
      setText(byId("about"), about(figures));
    }),
  );
  byId("tab-figures").addEventListener("click", showTable);
  byId("tab-figures").addEventListener("focus", showTable);
  const refuse = (reason) => {
    setText(byId("figures-note"), reason);
    byId("rates").hidden = byId("numbers").hidden = reason !== "";
  };
  connection.addEventListener("state", ({ detail: { state } }) => {
    if (state === "connected") refuse("");
    else figures.interrupt();
  });
  whenSomebodyElse(connection, () => {
    figures.values.clear();
    showTable();
    setText(byId("about"), "");
  });
  connection.follow(
    "$SYS/broker/#",
    (topic, payload, packet) => figures.take(topic, payload, packet),
    (reason) =>
      refuse(`The metrics require the right to subscribe to $SYS/#: ${reason}`),
  );
}

function brokerTables(connection, past) {
  const note = byId("broker-note");
  const clients = new Clients(byId("clients"), note);
  const streams = new Streams(byId("streams"), note, (names) => past.streams(names));
  const readers = new Readers(byId("streams"));
  const quotas = new Quotas(byId("quotas"), note);
  const pipelines = new Pipelines(byId("pipelines"), byId("tab-pipelines"), () => choose("tab-clients"));
  connection.follow(
    "$pipelines/+",
    (topic, payload) => pipelines.take(topic, payload),
    (reason) =>
      pipelines.refuse(`Pipelines require the right to subscribe to $pipelines/#: ${reason}`),
  );
  whenSomebodyElse(connection, () => pipelines.clear());
  const refreshes = [
    repeat(
      2,
      () => connection.connected && !byId("clients").hidden,
      (again) => clients.refresh(again),
    ),
    repeat(
      2,
      () => connection.connected && !byId("streams").hidden,
      (again) => Promise.all([streams.refresh(again), readers.refresh()]),
    ),
    repeat(
      2,
      () => connection.connected && !byId("quotas").hidden,
      (again) => quotas.refresh(again),
    ),
  ];
  const refresh = () => refreshes.forEach((once) => once(true));
  const choose = tabs(byId("tab-clients").parentElement, () => {
    setText(note, "");
    refresh();
  });
  connection.addEventListener("state", ({ detail: { state } }) => state === "connected" && refresh());
}

/**
 * Reconnect when the broker has reloaded users and rules: subscriptions may have ended without notice, and
 * refused ones may be allowed now.
 */
function whenRightsChange(connection, reloads) {
  repeat(
    2,
    () => connection.connected,
    async () => {
      const broker = await ask("broker").catch(() => null);
      if (broker === null || broker.reloads === reloads) return;
      reloads = broker.reloads;
      connection.again();
    },
  );
}

function logIn(connection, users) {
  const dialog = byId("log-in-dialog");
  const note = byId("log-in-note");
  let tried = false;
  const open = (reason) => {
    setText(note, reason);
    note.classList.toggle("bad", tried);
    if (!dialog.open) dialog.showModal();
  };
  byId("log-in").hidden = !users;
  // An anonymous user may still log in, to get more rights.
  document.addEventListener("refused", () => (byId("log-in").hidden = false));
  byId("log-in").addEventListener("click", () => open(""));
  byId("log-in-cancel").addEventListener("click", () => dialog.close());
  byId("log-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const user = byId("log-in-user").value;
    const password = byId("log-in-password").value;
    tried = true;
    setText(note, "Logging in ...");
    useCredentials(user, password);
    connection.open(user, password);
  });
  connection.addEventListener("state", ({ detail: { state, reason } }) => {
    showState(state, reason);
    if (state === "refused") open(tried ? `Refused: ${reason}` : "This broker requires a log-in.");
    if (state === "connected") {
      dialog.close();
      byId("log-in-password").value = "";
      setText(byId("user"), tried ? byId("log-in-user").value : "");
      setText(byId("log-in"), tried ? "Log in as another" : "Log in");
    }
  });
}

async function main() {
  const broker = await findBroker();
  if (!broker.websocket) {
    showState("alone", "this broker has no WebSocket listener, such as ws://127.0.0.1:8083/mqtt");
    return;
  }
  const url = reachable(broker.websocket);
  if (location.protocol === "https:" && url.startsWith("ws:") && !LOOPBACK.test(location.hostname)) {
    showState("alone", "a page loaded over HTTPS needs a wss:// listener, or a proxy and http.public_url");
    return;
  }
  const connection = new Connection(url);
  logIn(connection, broker.users);
  brokerFigures(connection);
  const { apply, past } = viewing(connection);
  topicTree(connection, apply);
  brokerTables(connection, past);
  whenRightsChange(connection, broker.reloads);
  connection.open();
}

main();
