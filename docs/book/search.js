// The book's search finds Chinese, too. mdBook's own cuts a text at its spaces, of which Chinese has none, and drops
// words without ASCII. So Chinese is indexed here by pairs of characters, when the reader first opens the search.
(() => {
    "use strict";
    if (!window.elasticlunr) return;
    const { Index, Pipeline, tokenizer, trimmer } = elasticlunr;
    const isChinese = /\p{Script=Han}/u;
    const runs = text => text.match(/\p{Script=Han}+/gu) ?? [];

    const pairs = text => runs(text).flatMap(run =>
        run.length < 2 ? [run] : Array.from({ length: run.length - 1 }, (_, at) => run.slice(at, at + 2)));

    // What the reader types.
    elasticlunr.tokenizer = Object.assign(words => {
        const text = words?.toString() ?? "";
        const others = tokenizer(text.replace(/\p{Script=Han}+/gu, " "));
        return others.filter(Boolean).concat(pairs(text));
    }, tokenizer);
    Pipeline.registeredFunctions.trimmer = word => isChinese.test(word) ? word : trimmer(word);

    // What the book says.
    const load = Index.load;
    Index.load = saved => {
        const index = load.call(Index, saved);
        for (const [ref, page] of Object.entries(index.documentStore.docs)) {
            for (const field of index.getFields()) {
                const counts = new Map();
                for (const pair of pairs(page[field] ?? "")) counts.set(pair, (counts.get(pair) ?? 0) + 1);
                for (const [pair, count] of counts) index.index[field].addToken(pair, { ref, tf: Math.sqrt(count) });
            }
        }
        return index;
    };
})();
