"""What the chat page makes of the text of models: Markdown, and nothing but Markdown."""

import os
import random

import pytest
from mock_chat_server import call, finish, text, thought
from page_browser import answers, browser, chat, expect, needs_chromium, open_page, page, ready, server, settled  # noqa: F401

pytestmark = needs_chromium


SAMPLE = """# One

Text with **bold**, *italic*, ***both***, `code`, ~~gone~~ and snake_case_names, 2 * 3 * 4.
A new line. A [link](https://example.com/a_(b) "title"), <https://example.org>, https://example.net/x?y=1.

- one
- two
  - nested
    1. deep
    2. deeper

  more of two
* other list

3. three
4. four
   ```python
   def f():
       return "*not bold*"
   ```

- [x] done
- [ ] open

> quoted
> - list
lazy

| a | b |
|:--|--:|
| 1 | `x \\| y` |
| 2 |

Setext
------

---

~~~
tilde
~~~
```js
const open = 1;
"""


def render(page, source):
    return page.evaluate("(source) => { const root = document.createElement('div'); new MarkdownView(root).show(source); return root.innerHTML; }", source)


def test_markdown(page, server):
    server.say(text(SAMPLE), finish())
    chat(page, "Markdown")
    answer = answers(page).locator(".text")
    expect(answer.locator("h1")).to_have_text("One")
    expect(answer.locator("h2")).to_have_text("Setext")
    expect(answer.locator("p strong").first).to_have_text("bold")
    expect(answer.locator("p > em").first).to_have_text("italic")
    expect(answer.locator("em > strong")).to_have_text("both")
    expect(answer.locator("del")).to_have_text("gone")
    expect(answer.locator("> p").first).to_contain_text("snake_case_names, 2 * 3 * 4.")
    links = answer.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == ["https://example.com/a_(b)", "https://example.org", "https://example.net/x?y=1"]
    for link in links.all():
        assert "noopener" in link.get_attribute("rel") and link.get_attribute("target") == "_blank"
    expect(answer.locator("ul > li > ul > li > ol > li")).to_have_text(["deep", "deeper"])
    expect(answer.locator("ol[start='3'] > li")).to_have_count(2)
    expect(answer.locator("ol .block pre")).to_have_text('def f():\n    return "*not bold*"')
    expect(answer.locator("input[type=checkbox]")).to_have_count(2)
    expect(answer.locator("input:checked")).to_have_count(1)
    expect(answer.locator("blockquote li")).to_have_text("list\nlazy", use_inner_text=True)
    expect(answer.locator("th")).to_have_text(["a", "b"])
    expect(answer.locator("td")).to_have_text(["1", "x | y", "2", ""])
    expect(answer.locator("hr")).to_have_count(1)
    expect(answer.locator("> .block pre")).to_have_text(["tilde", "const open = 1;"])


@pytest.mark.parametrize(
    "source, html",
    [
        ("a*b*c", "<p>a<em>b</em>c</p>"),
        ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
        ("**bold:** x", "<p><strong>bold:</strong> x</p>"),
        ("*a **b*", "<p>*a *<em>b</em></p>"),
        ("`` a`b ``", "<p><code>a`b</code></p>"),
        ("`open", "<p>`open</p>"),
        ("a\\b \\1 \\A \\(x\\)", "<p>a\\b \\1 \\A \\(x\\)</p>"),
        (r"\*no\* \\ \[x\]", r"<p>*no* \ \[x\]</p>"),
        ("1986. A year", '<ol start="1986"><li>A year</li></ol>'),
        ("text\n1986. no list", "<p>text<br>1986. no list</p>"),
        ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
        ("1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
        ("#no heading", "<p>#no heading</p>"),
        ("## a ##", "<h2>a</h2>"),
        ("a | b\nno table", "<p>a | b<br>no table</p>"),
        ("&lt;b&gt; &amp;amp;", "<p>&lt;b&gt; &amp;amp;</p>"),
        ("-\ta\n\t- b", "<ul><li>a<ul><li>b</li></ul></li></ul>"),
        ("x<br>y", "<p>x<br>y</p>"),
        ("![alt](https://e.com/a.png)", '<p><a href="https://e.com/a.png" target="_blank" rel="noopener noreferrer nofollow">alt</a></p>'),
        ("[a](/etc) [b](//e.com) [c](ftp://e.com)", "<p>[a](/etc) [b](//e.com) [c](ftp://e.com)</p>"),
        ("(https://e.com/a).", '<p>(<a href="https://e.com/a" target="_blank" rel="noopener noreferrer nofollow">https://e.com/a</a>).</p>'),
    ],
)
def test_markdown_cases(page, source, html):
    assert render(page, source) == html


@pytest.mark.parametrize("source", ["```make\nall:\n\techo\n```", "- a\n  ~~~\n  all:\n  \techo\n  ~~~"])
def test_code_keeps_its_tabs(page, source):
    assert "all:\n\techo" in render(page, source)


def test_growing_text_renders_as_the_whole(page):
    """At every length, what was rendered piece by piece equals what is rendered at once."""
    seed = int(os.environ.get("CARAT_PAGE_SEED", random.randrange(2**32)))
    draw = random.Random(seed)
    parts = ["a", "b c", "\n", "\n", "\n\n", "- ", "  - ", "1. ", "2) ", "> ", "```", "```\n", "~~~", "# ", "---", "===", "|", "| a | b |\n", "|---|---|\n",
             "*", "**", "_", "`", "[x](", "https://e.com", ")", "    ", "\t", "\\", "<br>", "!", "&amp;", "[ ] ", "~~", "\r\n"]  # fmt: skip
    sources = [SAMPLE] + ["".join(draw.choice(parts) for _ in range(60)) for _ in range(60)]
    failed = page.evaluate("""(sources) => {
      for (const source of sources) {
        const [piecewise, whole] = [document.createElement('div'), document.createElement('div')];
        const view = new MarkdownView(piecewise);
        for (let n = 1; n <= source.length; ++n) {
          view.show(source.slice(0, n));
          new MarkdownView(whole).show(source.slice(0, n));
          if (piecewise.innerHTML !== whole.innerHTML) return [source.slice(0, n), piecewise.innerHTML, whole.innerHTML];
        }
      }
      return null;
    }""", sources)
    assert failed is None, f"seed {seed}"


def test_settled_blocks_are_left_alone(page):
    """Only the end is rendered again, and a growing block of code keeps its element."""
    kept = page.evaluate("""() => {
      const root = document.createElement('div'), view = new MarkdownView(root);
      let text = 'First.\\n\\n- a\\n- b\\n\\n```c\\nint x;\\n';
      view.show(text);
      const nodes = [...root.children];
      for (let i = 0; i < 50; ++i) view.show(text += 'int y' + i + ';\\n');
      const same = nodes.every((node, k) => node === root.children[k]);
      view.show(text += '```\\n\\nThen.\\n\\nEnd.\\n');
      return same && nodes.every((node, k) => node === root.children[k]) && root.children.length === 5;
    }""")
    assert kept


HOSTILE_SIZES = ["*" * 50000, "_a" * 20000, "[" * 50000, "![" * 20000, "`" * 30001 + " " + "``" * 5000, "> " * 5000 + "x", "](" * 20000, "a\n" * 20000,
                 "\n".join(" " * (2 * n) + "- x" for n in range(500)), "- " * 5000, "|" * 20000 + "\n" + "|-" * 20000, "<" * 50000, "h" * 50000, "&" * 50000,
                 "\n" * 50000 + "x", "1. a\n" + "\n" * 20000 + "  b", "**a " * 10000, "*a* " * 10000, "http://" * 5000, "~~" * 20001, "\\" * 50000]  # fmt: skip


def test_no_text_takes_long_to_render(page):
    for source in HOSTILE_SIZES:
        spent = page.evaluate("""(source) => {
          const root = document.body.appendChild(document.createElement('div')), began = performance.now();
          new MarkdownView(root).show(source);
          root.getBoundingClientRect();
          root.remove();
          return performance.now() - began;
        }""", source)
        assert spent < 1500, source[:20]


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg/onload=window.hacked=1>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "[click](javascript:window.hacked=1)",
    "[click](JaVaScRiPt:window.hacked=1)",
    "[click](&#106;avascript:window.hacked=1)",
    "[click](java\tscript:window.hacked=1)",
    "[click](data:text/html,<script>window.hacked=1</script>)",
    "[click](vbscript:x)",
    "<javascript:window.hacked=1>",
    '[click](https://e.com/"onmouseover="window.hacked=1)',
    "![x](https://evil.example/a.png)",
    "![x](javascript:window.hacked=1)",
    "`<img src=x onerror=window.hacked=1>`",
    "```<img/src=x/onerror=window.hacked=1>\n<script>window.hacked=1</script>\n```",
    "| <img src=x onerror=window.hacked=1> |\n|---|\n| <script>window.hacked=1</script> |",
    "# <style>body{display:none}</style>",
    "<a href='https://evil.example' ping='https://evil.example'>x</a>",
    "<form action=https://evil.example><button>go</button></form>",
    "<link rel=stylesheet href=https://evil.example/a.css><meta http-equiv=refresh content='0;url=https://evil.example'>",
    "</textarea></div></script><script>window.hacked=1</script>",
]


def test_hostile_text_stays_text(page, server):
    evil = "<img src=x onerror=window.hacked=1>"
    server.models = {"data": [{"id": evil}]}
    page.reload()
    ready(page)
    server.say(*[thought(f"{line}\n\n") for line in HOSTILE], *[text(f"{line}\n\n") for line in HOSTILE], call(0, evil, evil, evil), finish("tool_calls"))
    chat(page, evil)
    page.locator(".call textarea").fill(evil)
    server.say(text("ok"), {"error": {"message": evil}})
    page.locator(".call textarea").press("Enter")
    settled(page)
    page.locator(".thought summary").first.click()
    answer = answers(page).first
    for line in HOSTILE[:4] + HOSTILE[18:]:
        expect(answer.locator(".text")).to_contain_text(line)
    expect(page.locator(".answer .error span")).to_have_text(evil)
    expect(page.locator("#model option")).to_have_text(evil)
    for tag in ("script", "img", "iframe", "style", "form", "object", "embed", "link", "meta"):
        expect(page.locator(f"main {tag}, nav {tag}")).to_have_count(0)
    for href in page.locator("#log a").evaluate_all("(links) => links.map((link) => link.href)"):
        assert href.startswith(("https:", "http:", "mailto:")), href
    assert page.locator("#log *").evaluate_all("(all) => all.every((e) => [...e.attributes].every((a) => !a.name.startsWith('on')))")
    assert page.evaluate("window.hacked") is None


def test_copying_code(open_page, server):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    server.say(text("```sh\nls | wc\n\necho\n```"), finish())
    chat(page, "Code")
    page.get_by_label("Copy code").click()
    expect(page.get_by_label("Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "ls | wc\n\necho"
