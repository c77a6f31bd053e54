"""Word tables of the sample texts: German and English side by side, jobs, tools, animals, things.

Everything is written for VocabForge. The rows stand in order of use: the generator draws the first
rows of a table far more often than the last ones, as words in real text are used.
"""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """A German noun with its gender (``m``, ``f``, ``n``) and its English meaning."""

    german: str
    gender: str
    english: str


def _nouns(text: str) -> tuple[Noun, ...]:
    rows = (row.split("=") for row in text.split())
    return tuple(Noun(german[2:], german[0], english.replace("_", " ")) for german, english in rows)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    rows = (row.split("=") for row in text.split(";"))
    return tuple((left.strip(), right.strip()) for left, right in rows)


def words(text: str) -> tuple[str, ...]:
    """The words of a text, in order."""
    return tuple(text.split())


PERSONS = _nouns(
    """m:Mann=man f:Frau=woman n:Kind=child m:Lehrer=teacher f:Lehrerin=teacher m:Schmied=smith m:Bauer=farmer
    f:Ärztin=doctor m:Bäcker=baker f:Köchin=cook m:Fischer=fisherman f:Königin=queen m:König=king
    m:Müller=miller f:Nachbarin=neighbour m:Freund=friend f:Schwester=sister m:Bruder=brother
    f:Mutter=mother m:Vater=father m:Jäger=hunter f:Sängerin=singer m:Maler=painter m:Gärtner=gardener
    m:Händler=trader f:Weberin=weaver m:Töpfer=potter m:Wächter=guard m:Dichter=poet f:Schreiberin=clerk
    m:Schneider=tailor m:Glaser=glazier m:Hirt=shepherd f:Imkerin=beekeeper m:Richter=judge
    m:Kapitän=captain f:Forscherin=researcher m:Dieb=thief m:Gast=guest f:Tochter=daughter m:Sohn=son
    f:Tante=aunt m:Onkel=uncle n:Mädchen=girl m:Reiter=rider m:Maurer=mason f:Hebamme=midwife
    m:Winzer=vintner m:Förster=forester f:Apothekerin=apothecary"""
)
THINGS = _nouns(
    """n:Buch=book m:Brief=letter n:Brot=bread m:Apfel=apple m:Tisch=table f:Lampe=lamp m:Schlüssel=key
    m:Mantel=coat m:Korb=basket n:Bild=picture f:Karte=map n:Messer=knife m:Topf=pot f:Kiste=crate
    n:Boot=boat m:Wagen=cart f:Uhr=clock m:Ring=ring n:Seil=rope m:Hammer=hammer f:Säge=saw m:Stuhl=chair
    n:Fenster=window f:Tür=door f:Flasche=bottle m:Becher=cup m:Teller=plate n:Kleid=dress m:Hut=hat
    m:Schuh=shoe f:Decke=blanket m:Besen=broom m:Spiegel=mirror f:Kerze=candle n:Fass=barrel m:Käse=cheese
    n:Ei=egg m:Fisch=fish f:Suppe=soup m:Kuchen=cake f:Birne=pear f:Münze=coin m:Stein=stone n:Holz=wood
    n:Netz=net f:Glocke=bell f:Geige=violin f:Trommel=drum m:Sack=sack f:Feder=feather n:Rad=wheel
    f:Schaufel=shovel m:Nagel=nail f:Axt=axe n:Zelt=tent m:Krug=jug f:Schere=pair_of_scissors m:Knopf=button
    f:Nadel=needle m:Faden=thread n:Tuch=cloth m:Honig=honey n:Salz=salt m:Kamm=comb m:Löffel=spoon
    f:Gabel=fork n:Kissen=pillow m:Ofen=stove f:Leiter=ladder n:Paket=parcel"""
)
PLACES = _nouns(
    """f:Stadt=city n:Dorf=village n:Haus=house m:Garten=garden m:Wald=forest f:Schule=school m:Markt=market
    f:Kirche=church f:Küche=kitchen m:Hafen=harbour n:Feld=field f:Mühle=mill m:Keller=cellar
    n:Schloss=castle f:Werkstatt=workshop m:Turm=tower n:Tal=valley f:Höhle=cave m:Park=park f:Scheune=barn
    m:Hof=courtyard n:Museum=museum f:Bücherei=library m:Laden=shop n:Zimmer=room f:Halle=hall
    m:Stall=stable n:Gasthaus=inn"""
)
# German strong form after the definite article is -e (accusative masculine -en): one stem serves both.
ADJECTIVES = _pairs(
    "alt=old; neu=new; klein=small; groß=big; rot=red; schön=beautiful; jung=young; schwer=heavy; "
    "blau=blue; arm=poor; reich=rich; grün=green; kalt=cold; warm=warm; müde=tired; still=quiet; "
    "stark=strong; schwarz=black; weiß=white; klug=clever; lang=long; kurz=short; rund=round; süß=sweet; "
    "frisch=fresh; leer=empty; voll=full; breit=wide; schmal=narrow; freundlich=friendly; ehrlich=honest;"
    " fleißig=hard-working; seltsam=strange; teur=expensive; billig=cheap; gelb=yellow; braun=brown; "
    "scharf=sharp; weich=soft; hart=hard; nass=wet; trocken=dry; fremd=foreign; mutig=brave; faul=lazy; "
    "berühmt=famous; ruhig=calm; schmutzig=dirty; sauber=clean"
)
# Third person singular of verbs with a direct object.
VERBS = _pairs(
    "sieht=sees; kauft=buys; sucht=looks for; findet=finds; trägt=carries; bringt=brings; holt=fetches; "
    "verkauft=sells; nimmt=takes; hat=has; braucht=needs; zeigt=shows; baut=builds; öffnet=opens; "
    "putzt=cleans; malt=paints; versteckt=hides; verliert=loses; repariert=repairs; zählt=counts; "
    "wäscht=washes; schenkt=gives away; bewacht=guards; prüft=checks; wirft=throws; stiehlt=steals; "
    "berührt=touches; zerbricht=breaks; bewundert=admires; beschreibt=describes; verpackt=packs; "
    "misst=measures; leiht=borrows; sammelt=collects"
)
TIMES = _pairs(
    "Heute=Today; Am Morgen=In the morning; Jeden Tag=Every day; Am Abend=In the evening; Jetzt=Now; Im "
    "Sommer=In summer; Im Winter=In winter; Oft=Often; Am Montag=On Monday; Am Freitag=On Friday; "
    "Manchmal=Sometimes; Im Frühling=In spring; Im Herbst=In autumn; Am Sonntag=On Sunday; Selten=Rarely;"
    " Nachts=At night; Am Mittag=At noon; Nach der Arbeit=After work; Vor dem Essen=Before the meal"
)
PREPOSITIONS = _pairs("in=in; vor=in front of; hinter=behind; neben=next to")
CONNECTIVES = _pairs("und=and; aber=but; denn=because")

JOBS = words(
    "baker smith weaver fisher carpenter potter miller painter tailor mason glazier cooper shepherd "
    "beekeeper gardener printer clockmaker shipwright cobbler tanner brewer saddler bookbinder "
    "candlemaker ropemaker surveyor apothecary goldsmith roofer wheelwright chandler dyer cutler "
    "basketmaker lamplighter ferryman"
)
# (tool, what it is made of, what it does) and the job that uses it: row i belongs to JOBS[i].
_TOOLS = (
    "oven=brick=bakes the bread;hammer=iron=shapes the hot metal;loom=oak=crosses the "
    "threads;net=hemp=holds the catch;plane=beech=smooths the boards;wheel=stone=turns the wet "
    "clay;millstone=granite=grinds the grain;brush=bristle=spreads the colour;needle=steel=joins the "
    "cloth;trowel=steel=lays the mortar;cutter=diamond=scores the pane;adze=iron=hollows the "
    "staves;crook=hazel=guides the sheep;smoker=tin=calms the bees;spade=ash=turns the "
    "soil;press=iron=prints the page;file=steel=fits the gears;caulking iron=iron=seals the "
    "planks;last=maple=shapes the shoe;scraper=horn=cleans the hide;kettle=copper=boils the "
    "wort;awl=steel=pierces the leather;folder=bone=creases the sheets;mould=pewter=forms the "
    "candles;top=elm=twists the strands;chain=brass=measures the land;mortar=marble=grinds the "
    "herbs;crucible=clay=melts the gold;ladder=spruce=reaches the roof;spokeshave=birch=rounds the "
    "spokes;dipper=tin=lifts the wax;vat=larch=holds the dye;grindstone=sandstone=sharpens the "
    "blades;bodkin=willow=opens the weave;pole=bamboo=lights the lamps;oar=ash=moves the boat"
)
TOOL_ROWS = tuple(tuple(part.strip() for part in row.split("=")) for row in _TOOLS.split(";"))
FOODS = words(
    "apples bread plums cheese walnuts honey beans pears barley carrots fish mushrooms cabbage eggs "
    "berries olives onions figs oats turnips cherries lentils almonds pumpkins leeks quinces radishes "
    "chestnuts"
)
GOODS = words(
    "glass wool salt copper timber paper silk amber tea iron pottery leather wine marble pearls rope "
    "cheese furs spices tiles lace clocks bells ink"
)
OBJECTS = words(
    "apples books coins stamps pencils eggs marbles cakes tickets bottles cards boxes shells flowers "
    "buttons nails candles pears plates ribbons bricks oranges lamps baskets letters hats cups stones "
    "maps beads"
)
FEELINGS = words("happy tired proud curious worried calm excited lonely hopeful hungry cheerful nervous")
WEATHER = words("sunny rainy windy foggy snowy stormy cloudy frosty warm misty")
COLOURS = words("red blue green white black yellow grey brown golden silver purple orange")
