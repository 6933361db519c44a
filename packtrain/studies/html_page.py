"""The frame of all HTML pages: one self-contained file, with a dark mode.

A content security policy forbids every request and every script but the page's own, which it identifies by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from packtrain.studies.chart import PALETTE_DARK, escape, palette_css

CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
)

_LIGHT = (
    "--page:#f5f6f8;--card:#ffffff;--ink:#1d2430;--muted:#586070;--edge:#dfe2e9;--warn:#fff4dc;--warn-edge:#e2b04a;"
    "--code:#f0f2f5;--link:#00599b;" + palette_css()
)
_DARK = (
    "--page:#0f1318;--card:#181d24;--ink:#e5e9ef;--muted:#a0aab8;--edge:#2a313b;--warn:#33290f;--warn-edge:#8d6d22;"
    "--code:#11161c;--link:#7cc0f5;" + palette_css(PALETTE_DARK)
)
STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_DARK}}}}}"
    f":root[data-theme=light]{{color-scheme:light}}:root[data-theme=dark]{{color-scheme:dark;{_DARK}}}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:1200px;margin:0 auto;padding:28px 20px 40px}
h1{font-size:24px;line-height:1.25;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:15px;margin:0 0 8px}
.facts{margin:4px 0 16px;color:var(--muted)}
.facts b{color:var(--ink);font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px}
.tiles.wide{grid-template-columns:repeat(auto-fit,minmax(260px,1fr))}
.tile,.card,figure,details{background:var(--card);border:1px solid var(--edge);border-radius:10px}
.tile{padding:12px 16px;min-width:0}
.tile.run{border-left-width:5px}
.tile.main{grid-column:span 2}
.value small{font-weight:400;letter-spacing:0}
.label{font-size:13px;color:var(--muted);overflow-wrap:anywhere}
.run .label{font-weight:600;color:var(--ink)}
.value{font-size:26px;line-height:1.3;font-weight:650;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.note{font-size:12px;line-height:1.45;color:var(--muted);overflow-wrap:anywhere}
.grid{display:grid;gap:12px;margin-top:12px}
.grid.large{grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr))}
.grid.small{grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr))}
figure{margin:0;padding:16px 16px 12px;min-width:0}
figure svg{display:block;width:100%;height:auto}
figure>svg{max-height:560px}
figure>img,figure>video{display:block;max-width:100%;height:auto;margin:0 auto}
.card,details{margin-top:12px;padding:14px 16px}
summary{cursor:pointer;font-weight:600}
details details{background:none;border:0;margin:0;padding:8px 0 0}
details figure{background:none}
details .scroll{margin-top:8px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;min-width:50%}
th,td{text-align:left;padding:4px 24px 4px 0;border-top:1px solid var(--edge);vertical-align:top}
tbody th{font-weight:500}
thead th{border-top:0;color:var(--muted);font-weight:500}
tr>td:first-child{color:var(--muted)}
small{color:var(--muted);font-size:12px;margin-left:6px}
pre,code{font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
pre{background:var(--code);border-radius:6px;padding:12px;margin:10px 0 0;overflow:auto;max-height:560px}
.settings td{max-width:420px;overflow-wrap:anywhere}
.warning{background:var(--warn);border:1px solid var(--warn-edge);border-radius:10px;padding:8px 14px;margin:12px 0 0;
font-size:13px;overflow-wrap:anywhere}
footer{margin-top:20px;color:var(--muted);font-size:12px}
"""
)


def html_page(
    title: str,
    body: str,
    style: str = STYLE,
    *,
    script: str | Sequence[str] = "",
    controls: str = "",
    live_secs: float | None = None,
) -> str:
    """Return a complete page.

    Args:
      title: as text.
      body: of `main`, as HTML: foreign content in it must be escaped.
      style: CSS.
      script: JavaScript, one program or several; the content policy allows no other.
      controls: HTML above `main`.
      live_secs: interval at which the script may request the page from its server; None: no requests.
    """
    policy, live = CONTENT_POLICY, ""
    scripts = [one for one in ([script] if isinstance(script, str) else script) if one]
    if scripts:
        digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
        policy += "; script-src " + " ".join(f"'sha256-{digest}'" for digest in digests)
    if live_secs is not None:
        policy += "; connect-src 'self'"
        live = (
            # Otherwise the browser requests it.
            f'\n<meta name="packtrain-live" content="{live_secs:g}">\n<link rel="icon" href="data:,">'
        )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">{live}
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
{controls}<main>
{body}
</main>
{"".join(f"<script>{one}</script>" for one in scripts)}</body>
</html>
"""
