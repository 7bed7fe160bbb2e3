// Scores of the site's search: what users read comes before the reasons of those who change Weft, guides before single errors.
var LATER = { "decisions/": 60, "errors/": 8, "how-to-": 20, "ARCHITECTURE": 20, "mutants": 20 };
var Scorer = {
  score: function (result) {
    var page = result[0], score = result[4];
    Object.keys(LATER).forEach(function (begin) {
      if (page.indexOf(begin) === 0) score -= LATER[begin];
    });
    return score;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
