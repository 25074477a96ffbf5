"""Lists English abbreviations and other words for the sentence splitter, without final periods."""

# The sentence nearly always continues after these, even if an upper-case letter follows.
_ABBREVIATIONS = """
    Mr Mrs Ms Messrs Mme Mmes Mlle Mlles Dr Drs Prof Rev Revd Hon Esq St Ste Sts Mt Ft Fr Bp Abp
    Capt Cpt Col Gen Maj Lt Lieut Sgt Sergt Cpl Pvt Adm Cmdr Comdr Brig Gov Sen Sens Rep Reps Pres
    Supt Insp Det Amb Atty Hon'ble MM
    vs viz cf al approx ca incl eg ie
    mr mrs ms dr prof rev st capt col gen lt sgt
    e.g i.e E.g I.e
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())

# Abbreviations only before a number; elsewhere they may end a sentence ("No. I will not.").
_ABBREVIATIONS_BEFORE_NUMBER = """
    No no Nos nos Vol vol Vols vols Ch ch Chap chap Sec sec Sect sect Art art Fig fig Figs figs Eq
    eq Eqs eqs p pp P Pp Par par Pt pt Bk bk Ex ex Op op Ver ver Rev Ps Cor Matt Gen Deut
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec
"""
ABBREVIATIONS_BEFORE_NUMBER = frozenset(_ABBREVIATIONS_BEFORE_NUMBER.split())

# After "U.S." or an initial, these words begin a new sentence and do not continue a name.
_SENTENCE_STARTERS = """
    A After All Also Although An And Another Are As At Because Before But By Can Could Did Do Does
    Even For From Had Has Have He Her Here His How However I If In Indeed Is It It's Its Let Many
    May Meanwhile Most My No Nobody Nor Not Nothing Now Of On Once One Only Or Our Perhaps She
    Should Since So Some Still Such That The Their Then There These They This Those Though Thus To
    Today Under Until Was We Well Were What When Where Which While Who Whose Why Will With Would
    Yes Yet You Your
"""
SENTENCE_STARTERS = frozenset(_SENTENCE_STARTERS.split())

# Verbs that follow a speaker's name after quoted speech.
SPEECH_VERBS = (
    "added",
    "answered",
    "asked",
    "asks",
    "began",
    "begged",
    "continued",
    "cried",
    "cries",
    "demanded",
    "echoed",
    "ejaculated",
    "exclaimed",
    "inquired",
    "enquired",
    "interposed",
    "interrupted",
    "laughed",
    "murmured",
    "muttered",
    "observed",
    "persisted",
    "protested",
    "pursued",
    "rejoined",
    "remarked",
    "repeated",
    "replied",
    "responded",
    "retorted",
    "returned",
    "said",
    "says",
    "screamed",
    "shouted",
    "sighed",
    "sobbed",
    "suggested",
    "thought",
    "told",
    "urged",
    "whispered",
    "wondered",
)
