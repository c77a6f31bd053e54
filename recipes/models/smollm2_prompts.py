"""Make a file of training prompts for a drafter of SmolLM2-135M-Instruct.

The prompts are written here; --data adds passages and tasks. The same seed and data give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
import sys
import zipfile
from pathlib import Path

# Question forms, each with its subjects.
QA = """
who wrote {}? | The Count of Monte Cristo; Wuthering Heights; War and Peace; The Jungle Book; Dracula; The
Wealth of Nations; Gulliver's Travels; One Hundred Years of Solitude; The Old Man and the Sea // who painted
{}? | The Starry Night; Guernica; Girl with a Pearl Earring; The Night Watch; The Scream; The Birth of Venus;
American Gothic; The Persistence of Memory // who invented {}? | the telephone; the steam engine; the printing
press; dynamite; the World Wide Web; the thermometer; the sewing machine; the light bulb; the safety pin //
who discovered {}? | penicillin; radium; the planet Uranus; the electron; oxygen; insulin; X-rays // who
composed {}? | The Four Seasons; Swan Lake; The Magic Flute; Rhapsody in Blue; Carmen; the Messiah // who was
{}? | the first person in space; the first emperor of Rome; the last tsar of Russia; the first woman to win a
Nobel Prize; the first president of South Africa elected after apartheid; the leader of the Mongol Empire; the
queen of England during the Spanish Armada; Hypatia of Alexandria; the architect of St Paul's Cathedral in
London; the founder of the Red Cross; Ibn Battuta; Ada Lovelace // who is {}? | the author of the theory of
general relativity; the main character in Moby Dick; the god of the sea in Greek mythology; the patron saint
of Ireland; the chief god in Norse mythology; known as the father of modern medicine; the detective in the
novels set at Baker Street // when did {}? | the Berlin Wall fall; the Roman Empire in the west end; the
American Civil War start; the Titanic sink; Iceland become a republic; women get the right to vote in New
Zealand; India become independent; the Great Fire of London happen; the euro come into use as cash; the First
World War end; the Suez Canal open; the dinosaurs die out; humans first reach the South Pole; the Soviet Union
collapse // when was {}? | the Eiffel Tower built; the Magna Carta signed; the first email sent; Napoleon
born; the United Nations founded; the Panama Canal completed; the first moon landing; the Rosetta Stone found;
paper money first used; the game of basketball invented; the Battle of Hastings; the Hubble Space Telescope
launched // when do {}? | clocks go forward in Europe; bears hibernate; babies start to walk; tomatoes ripen;
leap years occur; salmon return to their rivers // where is {}? | Mount Kilimanjaro; the Great Barrier Reef;
Machu Picchu; the Gobi Desert; Lake Baikal; the Sagrada Familia; the Strait of Gibraltar; Angkor Wat; the
liver in the human body; Timbuktu; the Dead Sea; the headquarters of the World Health Organization; the
Mariana Trench; Easter Island // where does {}? | the Danube flow into the sea; chocolate come from; the name
America come from; photosynthesis take place in a plant; the word robot come from; most of the world's coffee
grow; digestion begin in the human body; the Amazon River start // what is the capital of {}? | Mongolia;
Peru; Norway; Kenya; Australia; Vietnam; Morocco; Canada; Chile; Hungary; New Zealand; Turkey; Pakistan //
what is {}? | the largest organ of the human body; the longest river in Asia; the chemical symbol for gold;
the currency of Switzerland; the boiling point of water at sea level; the smallest planet in the solar system;
the national animal of Scotland; the tallest mountain in Europe; the square root of 225; the official language
of Brazil; the difference between weather and climate; the meaning of the word ephemeral; the most abundant
gas in the atmosphere; the main ingredient of hummus; a leap second; the purpose of a constitution; the
hardest natural mineral; inflation; the speed of sound in air; the Richter scale; a palindrome; the oldest
university in the world; the difference between a fruit and a vegetable; a haiku; an isthmus; a mortgage; the
fear of heights called; a group of lions called // what are {}? | the three states of matter; the primary
colours; the symptoms of the flu; the Great Lakes; the main parts of a plant cell; the official languages of
Belgium; the four chambers of the heart; the branches of the United States government; vitamins good for; the
rings of Saturn made of // what does {}? | DNA stand for; the pancreas do; NASA stand for; a geologist study;
GDP mean; the Latin phrase carpe diem mean; a lighthouse keeper do; the word karaoke mean in Japanese; HTML
stand for // what causes {}? | earthquakes; rainbows; the tides; hiccups; rust; thunder; a fever; the seasons;
tooth decay // how many {}? | bones are in the adult human body; planets are in the solar system; players are
on a volleyball team; strings does a violin have; countries are in the European Union; hearts does an octopus
have; minutes are in a day; time zones does Russia have; sides does a hexagon have; keys are on a piano;
symphonies did Beethoven write; legs does a spider have; teeth does an adult have // how long does it take {}?
| light to travel from the sun to the earth; the earth to go around the sun; to boil an egg; the moon to orbit
the earth; a broken bone to heal; to learn to play the guitar // how do {}? | bees make honey; vaccines work;
birds find their way during migration; submarines sink and rise; noise-cancelling headphones work; cats always
land on their feet; microwaves heat food; glaciers form; fish breathe under water; elections work in Germany;
batteries store energy; pearls form; solar panels work // why is {}? | the sky blue; Venus hotter than
Mercury; the Dead Sea so salty; Pluto not a planet any more; sleep important; yawning contagious; biodiversity
important; gold so valuable; blood red // why did {}? | the Mayan cities decline; Britain leave the European
Union; the stock market crash in 1929; people build castles; the Vikings travel so far; Rome build roads; the
dodo become extinct // which {}? | country has the largest population; ocean is the deepest; animal runs the
fastest; planet has the most moons; element has the atomic number 1; continent has no permanent residents;
vitamin does sunlight help the body to make; countries border Switzerland; king had six wives; sea separates
Italy and Croatia; metal is liquid at room temperature; sport is played at Wimbledon // how much {}? | does an
elephant weigh; water should a person drink a day; salt is in sea water; does a blue whale eat in a day; of
the earth is covered by water; sleep does a child of ten need // who won {}? | the first football World Cup;
the Battle of Waterloo; the first Nobel Prize in Physics; the Battle of Gettysburg; the Peloponnesian War //
whose {}? | face is on the one-dollar bill; theorem is about right-angled triangles; assassination led to the
First World War; voyage proved that one can sail around the world // can you {}? | eat raw mushrooms; see the
Great Wall of China from space; freeze milk; survive without a spleen; charge a phone overnight safely; grow
avocados from seed; drink sea water; walk on Jupiter
"""
STEM_TOPICS = """
photosynthesis; plate tectonics; natural selection; the water cycle; black holes; electromagnetic induction;
DNA replication; the periodic table; entropy; Newton's third law; osmosis; the greenhouse effect; nuclear
fusion; the immune system; enzymes; semiconductors; the Doppler effect; radioactive decay; chemical bonding;
acids and bases; machine learning; public-key cryptography; binary search; hash tables; neural networks;
operating systems; data compression; the central limit theorem; prime numbers; derivatives in calculus; Bayes'
theorem; matrix multiplication; graph theory; aerodynamic lift; refrigerators; electric motors; lithium-ion
batteries; wind turbines; GPS navigation; suspension bridges; 3D printing; the nitrogen cycle; antibiotic
resistance; stem cells; mitosis and meiosis; volcanic eruptions; ocean currents; the life cycle of stars;
gravitational waves; dark matter; superconductivity; lasers; fibre-optic cables; catalysts; polymers;
buoyancy; the human heart; neurons; food chains; the carbon cycle; database indexes; sorting algorithms;
wireless networks; sampling and statistics; the ideal gas law; vaccines; soil erosion; tsunamis
"""
STEM_FORMS = """
Explain {} in simple terms. // What should a high-school student know about {}? // Describe how scientists or
engineers study {}. // Give a short overview of {} and name one everyday example. // Explain {} to someone
with no scientific background, using an analogy. // What are common misconceptions about {}? // List five key
facts about {}. // Why does the topic of {} matter in practice? // Write a paragraph for a textbook about {}.
// Explain {} step by step.
"""
HUM_TOPICS = """
the French Revolution; the Renaissance; the Silk Road; Stoicism; existentialism; the Enlightenment;
Shakespeare's tragedies; the Industrial Revolution; the fall of the Roman Empire; the Cold War; colonialism;
the printing press; Buddhism; the Protestant Reformation; ancient Egypt; Athenian democracy; feudalism; the
civil rights movement; women's suffrage; romantic poetry; impressionist painting; Gothic architecture; the
Black Death; the Ottoman Empire; the Meiji Restoration; the Harlem Renaissance; utilitarianism; Plato's theory
of forms; Confucian ethics; the social contract; free will; human rights; the origins of writing; the Homeric
epics; Greek tragedy; medieval universities; Baroque music; jazz; the history of the novel; oral tradition;
propaganda in wartime; urbanisation; the abolition of slavery; the Congress of Vienna; the League of Nations;
the partition of India; supply and demand; globalisation; inflation in history; monetary policy; the
separation of powers; nationalism; the Great Depression; the Marshall Plan; the Aztec Empire; the Mali Empire;
the Tang dynasty; the history of cartography; linguistics; archaeology; museums; folk tales; surrealism; the
ethics of animal welfare; the role of journalism; satire; opera; the Bauhaus
"""
HUM_FORMS = """
Give an introduction to {} for a general reader. // What were the main causes or origins of {}, and why do
they matter? // Discuss the importance of {} in two paragraphs. // Explain {} as a teacher would to a class of
fifteen-year-olds. // What are the main debates among scholars about {}? // How has our view of {} changed
over time? // Name three people connected with {} and explain what each of them did. // Write a short essay
outline about {}. // Compare two different views of {}. // What can we learn today from {}?
"""
WRITING_ESSAYS = """
working from home; learning a musical instrument; public libraries; school uniforms; cycling in cities; social
media and friendship; travelling alone; the value of failure; cooking for friends; fast fashion; reading
before bed; urban gardens; keeping a diary; volunteering; living in a small town; video games; early morning
exercise; adopting a pet; saving money as a student; learning a second language; slow travel; letting children
take risks; second-hand shopping; public transport; the four-day working week
"""
WRITING_ESSAY_FORMS = """
Write a short blog post about {}. // Write three arguments for and three arguments against {}. // Write an
opening paragraph for a magazine article about {}. // Give me five catchy titles for an article about {}. //
Write a short speech about {} for a school assembly.
"""
WRITING_STORIES = """
a clockmaker who finds a letter inside an old clock; two sisters who restore a boat; a robot that learns to
bake bread; a lighthouse on an island nobody visits; a teacher on her first day in a village school; a dog
that finds its way home through the snow; a map that changes every night; a librarian who meets a traveller
from the past; a family moving to Mars; a violin that was lost on a train; a baker who cannot taste; a boy who
befriends an old fisherman; a city where it never stops raining; a detective who is afraid of the dark; a
farmer and a talking crow; the last bookshop in town; a night train across the desert; a gardener who grows
blue roses; an astronaut who misses the sea; a painter who paints only doors
"""
WRITING_STORY_FORMS = """
Write a short story about {}. // Write the first paragraph of a novel about {}. // Write a poem of three
stanzas about {}. // Write a bedtime story for young children about {}. // Write a short dialogue in a story
about {}.
"""
WRITING_TASKS = """
Write a polite email to my landlord asking him to repair the heating. // Write a thank-you note to a colleague
who helped me to finish a report. // Write an email to a customer explaining that the delivery will be two
days late. // Write a cover letter for a job as a junior accountant. // Write an invitation to a neighbourhood
summer party. // Write a product description for a waterproof hiking backpack. // Write a short review of a
small Italian restaurant with slow service but excellent food. // Write a message to my team announcing that
the Monday meeting moves to Tuesday. // Write a letter of complaint about a noisy hotel room. // Write a toast
for my best friend's wedding. // Write a short biography of a fictional mountain climber. // Rewrite this
sentence in a formal tone: "We can't give you your money back, sorry." // Rewrite this sentence so that it is
easier to read: "The utilisation of the facility is contingent on payment." // Correct the grammar: "He don't
has no time for to visit their grandmother last week." // Make this text shorter: "I am writing to you today
in order to ask you whether it would be possible for you to send me the documents that we talked about when we
met last week at the conference." // Write a farewell email to colleagues after ten years in the company. //
Write a newsletter item about the opening of a new swimming pool. // Write the text of a poster for a charity
run. // Write a short radio advertisement for a bicycle shop. // Write instructions for making a cup of tea.
// Write a packing list for a week of camping in the mountains. // Write a recipe for vegetable soup with a
list of ingredients. // Write a one-week workout plan for a beginner. // Write a meeting agenda for the launch
of a new website. // Write a short apology to a friend whose birthday I forgot. // Write a press release about
a town that will plant 5,000 trees. // Write a description of a busy market in the early morning, using all
five senses. // Write a short scene in which two strangers share a taxi. // Suggest names for a small bakery
and give a reason for each. // Write a request for a letter of recommendation to a former professor.
"""
ROLEPLAY = """
a medieval blacksmith | Describe a day in your workshop. | A knight brings you a broken sword. What do you
say? // an experienced mountain guide | What should I take on a two-day hike? | The weather turns bad. Tell me
what to do. // a museum guide in an Egyptian collection | Welcome a group of pupils. | Explain what a mummy
is. // a job interviewer for a software company | Ask me the first three questions. | Give me feedback on
being late. // a friendly nutritionist | I skip breakfast every day. What do you advise? | Help me to plan a
week of dinners. // the captain of a starship | Give your crew a speech before landing. | Report to
headquarters about a new planet. // an old sailor in a harbour bar | Tell me about the worst storm you have
seen. | Why did you never leave the sea? // a hotel receptionist | My room is too loud. Can you help me? |
Recommend places to eat near the hotel. // a personal finance coach | I spend more than I earn. Where do I
start? | Should I buy or rent a home? // a patient piano teacher | I cannot play with both hands together. |
How often should I practise? // a talking oak tree | What have you seen in the last three hundred years? |
What do you think of people? // a Victorian explorer writing home | Describe the river you travelled on. |
Tell your sister about the food. // a veterinarian | My cat does not eat any more. What questions do you ask
me? | How do I look after a puppy? // a science-fiction author | Describe the world of your next book. | Where
do your ideas come from? // the mayor of a small town | Answer a citizen who complains about traffic. | Open
the spring festival. // a weather presenter | Present the forecast for a stormy weekend. | Explain fog to your
viewers. // a detective in the 1920s | Describe the scene of the theft. | Question the butler about last
night. // a travel agent | Plan three days in Lisbon for a family. | I want a quiet beach holiday. What do you
suggest? // a football coach at half-time | We are losing by two goals. Talk to the team. | Explain the new
tactic. // a kind grandmother who loves cooking | Teach me your favourite soup. | I feel lonely in my new
city. // a customer support agent for an internet provider | My connection fails every evening. | I want to
cancel. // a philosopher in ancient Greece | What is a good life? | A student says that nothing can be known.
Answer him. // a robot who has just been switched on | Describe what you notice first. | Ask your maker three
questions. // a wise dragon who guards a library | I would like to borrow a book. | Why do you guard books and
not gold? // a doctor talking to a nervous patient | Explain what happens during a blood test. | I cannot
sleep at night. // a history teacher | Start a lesson about castles. | A pupil asks why dates matter. Answer.
// a librarian | Recommend three books for a rainy weekend. | Help me to find sources about bees. // a pirate
who has retired to a farm | How do you like your new life? | Write a letter to your former crew. // a chef in
a busy kitchen | Give instructions for the evening. | A guest sends the fish back. React. // a language
teacher from Spain | Teach me five useful phrases. | How can I improve my pronunciation?
"""
GERMAN = """
Der Zug nach Hamburg fährt heute von Gleis sieben ab. // Die Regierung will die Steuern für kleine Unternehmen
senken. // Gestern Abend haben wir lange auf dem Balkon gesessen und geredet. // Nach Angaben der Polizei
wurde bei dem Unfall niemand verletzt. // Könnten Sie mir bitte sagen, wo die nächste Apotheke ist? // Die
Preise für Lebensmittel sind im vergangenen Jahr deutlich gestiegen. // Mein Bruder arbeitet seit drei Jahren
in einer Bäckerei. // Der Bürgermeister eröffnete am Samstag die neue Brücke über den Fluss. // Wir müssen
noch Milch, Eier und Brot kaufen. // Das Unternehmen plant, bis Ende des Jahres zweihundert neue Mitarbeiter
einzustellen. // Im Winter ist es hier schon um vier Uhr nachmittags dunkel. // Die Opposition kritisierte den
Entwurf als unzureichend. // Ich habe meinen Schlüssel im Büro vergessen. // Der Ausschuss wird in der
kommenden Woche über den Vorschlag abstimmen. // Das Museum zeigt eine Ausstellung über das Leben der Fischer
an der Nordsee. // Wegen des starken Schneefalls bleiben die Schulen morgen geschlossen. // Sie hat das Buch
in einer einzigen Nacht gelesen. // Der Minister sagte, dass die Verhandlungen noch nicht abgeschlossen seien.
// Wie lange dauert die Fahrt mit dem Bus zum Flughafen? // Die Forscher haben eine neue Methode entwickelt,
um Wasser zu reinigen. // Unsere Nachbarn haben einen großen Hund, der jeden Morgen bellt. // Der Umsatz des
Konzerns ging im dritten Quartal um vier Prozent zurück. // Kannst du mir helfen, den Tisch in die Küche zu
tragen? // Die Mannschaft gewann das Spiel in der letzten Minute. // Am Bahnhof warteten Hunderte von
Reisenden auf den verspäteten Zug. // Ohne eine gemeinsame Lösung wird sich die Lage weiter verschlechtern. //
Meine Großmutter backt jeden Sonntag einen Apfelkuchen. // Das Gericht entschied, dass der Vertrag ungültig
ist. // Die Stadt will in den nächsten fünf Jahren mehr Wohnungen bauen. // Im Frühling blühen die Kirschbäume
in unserer Straße. // Viele junge Menschen ziehen vom Land in die großen Städte. // Der Präsident reist am
Donnerstag zu Gesprächen nach Brüssel. // Ich würde gern ein Zimmer für zwei Nächte reservieren. // Die Kinder
spielen im Garten, obwohl es regnet. // Experten warnen vor den Folgen der Trockenheit für die Landwirtschaft.
// Das neue Gesetz soll am ersten Januar in Kraft treten. // Er hat sich sehr über deinen Brief gefreut. //
Die Zentralbank hat den Leitzins zum zweiten Mal in Folge unverändert gelassen. // Auf dem Markt gibt es
frisches Obst aus der Region. // Der Film erzählt die Geschichte eines Mannes, der sein Gedächtnis verliert.
// Leider ist dieses Modell zurzeit nicht auf Lager. // Die Gewerkschaft fordert höhere Löhne und kürzere
Arbeitszeiten. // Nach dem Essen sind wir am See spazieren gegangen. // Die Feuerwehr konnte den Brand erst
nach mehreren Stunden löschen. // Wenn das Wetter schön ist, fahren wir morgen in die Berge. // Die
Universität hat ein neues Zentrum für Klimaforschung gegründet. // Ich verstehe nicht, warum er nicht
angerufen hat. // Das Parlament verabschiedete den Haushalt mit knapper Mehrheit. // Der Arzt hat ihr geraten,
mehr zu schlafen und weniger zu arbeiten. // Die Zahl der Touristen ist wieder so hoch wie vor fünf Jahren. //
In der Altstadt findet man viele kleine Cafés und Buchläden. // Der Hersteller ruft mehrere tausend Fahrzeuge
in die Werkstätten zurück. // Hast du schon gehört, dass Anna umzieht? // Beide Seiten einigten sich auf einen
Waffenstillstand von zehn Tagen. // Bitte schalten Sie Ihre Telefone während der Vorstellung aus. // Die Bahn
investiert mehrere Milliarden Euro in neue Strecken. // Seit dem Umbau hat das Krankenhaus dreihundert Betten.
// Das Konzert wurde wegen einer Erkrankung der Sängerin verschoben. // Wir suchen eine Wohnung mit drei
Zimmern und einem Garten. // Die Wähler entscheiden am Sonntag über die Zukunft des Landes. // Der Kaffee ist
zu heiß, um ihn sofort zu trinken. // Wissenschaftler haben im Eis Spuren eines alten Vulkanausbruchs
gefunden. // Mein Fahrrad hat einen platten Reifen, deshalb komme ich zu spät. // Der Vorstand teilte mit,
dass zwei Werke im Süden geschlossen werden. // Im Urlaub möchte ich nichts tun als lesen und schwimmen. //
Trotz der Kritik hält die Ministerin an ihrem Plan fest. // Der alte Leuchtturm ist heute ein beliebtes Ziel
für Wanderer. // Die Ermittler gehen davon aus, dass das Feuer absichtlich gelegt wurde. // Könnten wir den
Termin auf nächsten Mittwoch verschieben? // Ein Drittel des Stroms stammt inzwischen aus Windkraft. // Sie
lernte Klavier spielen, als sie sechs Jahre alt war. // Die Verbraucher achten stärker auf den Preis als auf
die Marke. // Vor dem Rathaus demonstrierten rund tausend Menschen gegen die Schließung des Theaters. // Das
Hotel liegt ruhig und nur wenige Schritte vom Strand entfernt. // Der Außenminister rief alle Beteiligten zur
Zurückhaltung auf. // Ich habe gestern eine Stunde lang im Stau gestanden. // Die Ernte fiel wegen des
trockenen Sommers schlechter aus als erwartet. // Mach bitte das Fenster zu, es zieht. // Die Mieten in der
Hauptstadt haben sich innerhalb von zehn Jahren verdoppelt. // Der Trainer war mit der Leistung seiner Spieler
zufrieden. // Die Kommission will strengere Regeln für den Handel mit Daten vorschlagen. // Zum Geburtstag
habe ich von meinen Freunden eine Uhr bekommen. // Bei klarem Wetter kann man von hier aus die Alpen sehen. //
Die beiden Länder wollen ihre Zusammenarbeit in der Forschung ausbauen. // Der Supermarkt an der Ecke hat bis
zehn Uhr abends geöffnet. // Die Arbeitslosigkeit sank im Mai auf den niedrigsten Stand seit der
Wiedervereinigung. // Er fragte mich, ob ich ihm etwas Geld leihen könne. // Für die Reparatur der Straße sind
etwa sechs Wochen vorgesehen. // Das Kind schlief ein, bevor die Geschichte zu Ende war. // Der Schriftsteller
erhielt für seinen ersten Roman einen wichtigen Preis. // Nach der Wahl begann eine schwierige Suche nach
einer neuen Koalition. // Wo haben Sie so gut Deutsch gelernt? // Die Fluggesellschaft strich am Montag mehr
als hundert Flüge. // Wir haben uns auf einer Hochzeit kennengelernt. // Das Wasser im Fluss steigt seit
gestern nur noch langsam. // Der Bericht zeigt, dass viele Schüler Schwierigkeiten beim Lesen haben. //
Zwischen den beiden Dörfern verkehrt nur zweimal am Tag ein Bus. // Die Europäische Union will die Hilfe für
die betroffenen Regionen erhöhen. // Nimm einen Regenschirm mit, es soll heute Nachmittag regnen. // Die Aktie
des Autobauers verlor am Freitag fast acht Prozent. // Auf der Insel leben nur noch vierzig Menschen. // Sie
entschuldigte sich für das Missverständnis und bot ihm einen Tee an. // Das Dorf liegt in einem engen Tal, in
das im Winter kaum Sonne fällt. // Der neue Bahnhof wird frühestens in vier Jahren fertig. // Wer morgens früh
aufsteht, sieht auf dem Feld manchmal Rehe. // Die Polizei sucht Zeugen, die am Abend etwas Verdächtiges
bemerkt haben. // Die Suppe schmeckt besser, wenn man sie eine Stunde kochen lässt. // Ein Sprecher des
Ministeriums wollte die Meldung nicht bestätigen. // Ich freue mich darauf, dich nächste Woche endlich
wiederzusehen. // Kleine Betriebe leiden besonders unter den hohen Energiekosten. // Der Wanderweg führt an
drei Seen vorbei und endet an einer alten Mühle. // Die Richterin vertagte den Prozess auf den Herbst. //
Unser Lehrer erklärte uns, wie eine Uhr funktioniert. // Der Export ist für die deutsche Wirtschaft von großer
Bedeutung. // Wegen der Bauarbeiten fährt die Straßenbahn heute eine andere Strecke. // Man sollte nicht alles
glauben, was in der Zeitung steht. // Die Schule braucht dringend neue Computer und mehr Lehrkräfte. //
Nachdem er die Prüfung bestanden hatte, feierte er mit seinen Freunden. // Die Küche ist klein, aber hell und
gut ausgestattet. // Im Hafen liegen Schiffe aus aller Welt.
"""
FOREIGN = """
French | Le marché ouvre à huit heures tous les samedis matin. // French | Nous avons manqué le dernier train
et nous avons dû dormir à la gare. // French | Le gouvernement a annoncé une aide pour les agriculteurs
touchés par la sécheresse. // French | Ma sœur apprend à conduire depuis le mois de mars. // French |
Pourriez-vous me dire à quelle heure ferme le musée ? // French | Il fait trop froid pour dîner dehors ce
soir. // Spanish | La biblioteca está cerrada los lunes por la mañana. // Spanish | Mis abuelos viven en un
pueblo pequeño cerca del mar. // Spanish | El alcalde prometió construir dos escuelas nuevas antes de fin de
año. // Spanish | ¿Me puede traer la cuenta, por favor? // Spanish | Ayer llovió tanto que tuvimos que volver
a casa. // Spanish | Los precios de la vivienda han subido mucho en los últimos años. // Italian | Il treno
per Bologna è in ritardo di venti minuti. // Italian | Domani andiamo a trovare i nostri amici in montagna. //
Italian | La nuova legge aiuta le famiglie con bambini piccoli. // Italian | Vorrei un caffè e un bicchiere
d'acqua. // Portuguese | O filme começa às nove horas da noite. // Portuguese | A minha tia trabalha num
hospital no centro da cidade. // Portuguese | O preço do café aumentou por causa da seca. // Dutch | De winkel
is vandaag gesloten omdat het een feestdag is. // Dutch | Wij fietsen elke dag naar ons werk. // Dutch | De
gemeente wil meer bomen planten in het centrum.
"""
TRANSLATION_FORMS = """
Translate German to English: {} // Translate the following German sentence into English: {} // Translate into
English: {} // Translate this from German to English.\\n\\n{} // What does this German sentence mean in
English? "{}" // German: {}\\nEnglish: // Please translate the text below from German into English.\\n{}
"""
# Fictional news: passage, then a line of questions about it that begins with "?".
NEWS = """
The coastal town of Marwick opened its rebuilt harbour on Saturday after four years of work. The old stone
pier was damaged in a winter storm that sank eleven boats and flooded the fish market. The new pier is 240
metres long and stands on steel piles that were driven eighteen metres into the sea bed. The project cost 31
million crowns, of which the regional government paid two thirds. Harbour master Elin Dorsey said the first
ferries to the outer islands would sail on Monday. Fishermen welcomed the opening but complained that the
berth fees had risen by a fifth.
? How long is the new pier? ; Who paid most of the cost? ; Why was the harbour rebuilt?
Researchers at the University of Tallbridge have shown that city bees produce more honey than bees in farmland
nearby. For three summers the team weighed forty hives every week. Hives on rooftops gained an average of 28
kilograms a season, while hives beside maize fields gained only 19. The authors believe that parks and
balconies offer a wider range of flowers over a longer time. They warn, however, that too many hives in one
district could leave less food for wild bees. The city council now plans to limit the number of hives and to
plant wild flowers along tram lines.
? How many hives did the team weigh? ; Why do city bees produce more honey? ; What does the city council plan?
Workers at the Brennholt glass factory have ended a strike that lasted nineteen days. Under the agreement
reached on Thursday night, wages will rise by five percent this year and by two percent next year. The company
also agreed to hire thirty apprentices and to replace two furnaces that workers had called unsafe. In return
the union accepted that the night shift will start an hour earlier. Union leader Petra Vahl called the result
fair but late. The factory, which makes bottles for medicine, employs about 650 people and said that it would
need three weeks to clear the orders that had piled up.
? How long did the strike last? ; What did the union accept in return? ; What does the Brennholt factory make?
A rare copy of a map of the southern stars was found last month in the cellar of a school in Oldcastle. The
caretaker, Jonas Wren, discovered it in a tin box while looking for a leaking pipe. Experts at the national
library say the map was printed about 1690 and that only five other copies are known. Mould has damaged one
corner, but the colours are otherwise fresh. The school wants to keep the map, yet it cannot pay for a room
with controlled air. The library has offered to restore the sheet free of charge if it may show it to the
public for ten years.
? Who found the map and where? ; When was the map printed? ; What has the library offered to do?
The mountain railway between Steinau and Hochfeld will close for the whole of the autumn. Engineers found
cracks in two of the nine tunnels during a routine check in June. The operator says that there was never any
danger for passengers, since trains pass the tunnels at walking speed. Buses will replace the trains every
half hour, but the journey will take seventy minutes instead of forty. Hotel owners in Hochfeld fear that
walkers will stay away and have asked for lower taxes. If the weather is kind, trains should run again before
the skiing season begins in the middle of December.
? Why will the mountain railway close? ; How long will the bus journey take? ; When should trains run again?
Lena Okafor, a nurse of 34 from Port Selwyn, won the national marathon on Sunday in her first race over the
full distance. She ran the second half faster than the first and passed the favourite, Maria Stenlund, two
kilometres before the finish. Her time of two hours and twenty-nine minutes is the fourth best in the history
of the event. Okafor said she trained mostly before her early shifts, often in the dark. She will use part of
the prize money to buy running shoes for a youth club. The race had more than twelve thousand runners, of whom
nearly all reached the finish.
? Where does Lena Okafor come from? ; What will she do with the prize money? ; How did she win the race?
The government of the island republic of Saramba wants to ban plastic bags from next March. Shops that
continue to hand them out would face fines of up to 2,000 dollars. The environment minister, Tomas Reyl, said
that bags had blocked drains and made last year's floods worse. Market traders protested outside parliament
and demanded a longer transition. They say that paper bags fall apart in the rainy season and cost four times
as much. The minister promised a fund that will give every household three cloth bags. Parliament is expected
to vote before the end of the month.
? What fine would shops face? ; Why did market traders protest? ; What will every household receive?
The Kellerman Bank said on Wednesday that it would close 45 of its 180 branches over the next two years. Most
of them are in villages where fewer than fifty customers a day come to the counter. The bank will send a van
with a cash machine and an adviser to each village once a week. Consumer groups said older people would
suffer, because many of them do not bank online. Chief executive Ruth Amberg replied that the branches had
lost money for six years. She promised that nobody would be dismissed; the 300 people affected are to move to
call centres or larger branches.
? How many branches will close? ; What will the bank send to the villages? ; What happens to the staff?
Astronomers using the telescope on Mount Teral have found a small planet that circles a red star 31 light
years away. The planet, which is a little larger than the Earth, needs only nine days for one orbit. Because
its star is dim, the temperature at the surface might still allow liquid water. The team watched the star for
eleven months and saw its light fade slightly whenever the planet passed in front of it. Whether the planet
has an atmosphere is unknown. A larger telescope in space is to study it next spring, said the leader of the
team, Ana Pirelli.
? How far away is the planet? ; How did the team find the planet? ; What is still unknown about the planet?
Heavy rain caused landslides in the valley of the River Ossa on Tuesday and cut off three villages. About 900
people spent the night in a sports hall in the town of Lern. Helicopters brought blankets, drinking water and
medicine to those who could not leave their homes. No one was killed, but two men were taken to hospital with
broken legs. The main road will stay closed for at least ten days, because a bridge has lost one of its
pillars. Meteorologists expect dry weather from Thursday. The mayor of Lern asked visitors not to come to the
valley until the roads are clear.
? Where did people spend the night? ; Why will the main road stay closed? ; What did the mayor ask?
The Northlight Theatre will move into a former tram depot next year. The building from 1911 has stood empty
since the trams were replaced by buses. Architects plan a hall with 420 seats, a smaller stage for new plays
and a cafe in the old workshop. The iron roof, which is protected, will be repaired and insulated. Half of the
cost of nine million pounds comes from the city; the rest was collected from more than six thousand donors.
Director Imran Shah hopes that lower ticket prices will attract students. The first play in the new house will
be a comedy about a tram driver.
? How many seats will the hall have? ; Where does the money come from? ; What will the first play be about?
Wolves have returned to the forests around Harrow Lake for the first time in ninety years. Rangers
photographed a pair in January and counted five cubs in June. Sheep farmers in the district have lost about
sixty animals since then and want permission to shoot. The state pays for each sheep that was killed, but only
if the farmer had put up an electric fence. Biologists point out that the wolves feed mainly on deer, which
damage young trees. Tourist guides already offer evening tours on which visitors can listen for the howling. A
public meeting will be held in the village hall in October.
? When does the state pay for a killed sheep? ; What do the wolves mainly eat? ; What do tourist guides offer?
"""
SUMMARY_FORMS = """
Summarize: {} // Summarize the following text in two or three sentences.\\n\\n{} // Write a short summary of
this passage:\\n\\n{} // {}\\n\\nSummarize the text above. // Give the main points of the following passage as
a list.\\n\\n{} // Text: {}\\n\\nSummary: // TL;DR of the following:\\n\\n{} // Read the passage and state its
main idea in one paragraph.\\n\\n{}
"""
RAG_FORMS = """
Answer the question based on the passages.\\n\\n{p}\\n\\nQuestion: {q}\\nAnswer: // {p}\\n\\nUse the passages
above to answer this question: {q} // Below are some passages that were found by a search.\\n\\n{p}\\n\\n{q}
// Question: {q}\\n\\nPassages:\\n{p}\\n\\nGive a short answer that uses only the passages. // Here is some
context.\\n\\n{p}\\n\\nWith the help of the context, answer: {q}
"""
RAG_QUESTIONS = """
According to the passages, what is said about {}? // What do the passages tell us about {}? // Which facts
about {} are given in the passages? // What is the most important information about {}? // Which passage deals
with {}, and what does it say?
"""
EXTRACT_TEXTS = """
Meeting notes, 4 May: Present were Carla Benz, Omar Haddad and Liu Fang. Omar will send the budget by 9 May.
Carla books the room in Leeds for 21 May. Liu asks the printer for a price of 500 leaflets. // Flat to rent in
Aston Road: 3 rooms, 74 square metres, second floor, balcony, no pets, 980 euros a month plus 150 euros for
heating, free from 1 August, call Mrs Novak on 555-0143 after 6 p.m. // Dear team, my order 48213 of 12 March
arrived today. The blue kettle is broken, and instead of four cups there were only three. Please refund 34.50
to my card. Regards, Stella Marsh, 7 Mill Lane, York. // Flight NV 318 leaves Oslo at 07:45 and lands in
Vienna at 10:05. Flight NV 322 leaves Vienna at 11:30 and lands in Athens at 14:40. Passengers: Ines Costa
(seat 4A), Paul Greer (seat 4B). // The recipe needs 250 g of flour, 3 eggs, half a litre of milk, a pinch of
salt and 40 g of butter. Rest the batter for 30 minutes, then fry each pancake for two minutes on each side.
// Dr Amara Nwosu was born in Lagos in 1968, studied physics in Manchester, worked at a laboratory in Geneva
from 1995 to 2009 and has since taught at the University of Cape Town. She has written three books. // Review:
I love the screen and the keyboard of this laptop, but the battery lasts only four hours and the fan is loud.
The service was quick and polite. For 799 dollars I expected a better camera. // Server log: 02:14 disk 3
error; 02:15 disk 3 offline; 02:40 backup started; 03:55 backup finished, 212 GB; 06:01 user admin logged in;
06:07 disk 3 replaced; 06:30 all services normal. // The rivers Tarn, Moss and Ellen meet near Hatfield. The
Tarn is 84 km long, the Moss 61 km and the Ellen 130 km. Only the Ellen is used by ships; the Tarn has two
dams built in 1954 and 1971. // Patient is a man of 52 with a cough for two weeks and a temperature of 38.4.
He takes aspirin daily, is allergic to penicillin and smokes ten cigarettes a day. Next visit on 17 November.
// Kingfisher FC won 3-1 at home against Redhill on Saturday. Goals: Moreno (12, 77), Blake (45) and for
Redhill Osei (60). Attendance: 8,450. The next match is away against Eastport on 2 October. // Our conference
takes place in Tampere from 14 to 16 June. The early fee is 220 euros until 30 April, then 290 euros. Contact
Sanna Korpi, sanna@conf.example. Talks last 20 minutes, posters are shown on the first day.
"""
EXTRACT_TEXT_FORMS = """
Extract all names, dates and numbers from the text and return them as JSON.\\n\\n{} // List the key facts in
the following text as bullet points.\\n\\n{} // {}\\n\\nTurn the text above into a table with two columns:
item and value. // Identify every person, place or organisation mentioned in this text:\\n{}
"""
TABLES = [  # title, columns, row values, questions
    ("Monthly sales", "product,units,price", "desk,lamp,chair,shelf,mirror,rug,sofa", (5, 90), (15, 400)),
    ("Rainfall", "city,rainy days,rain in mm", "Bergen,Porto,Graz,Lyon,Cork,Split,Turin", (4, 25), (10, 240)),
    ("Staff", "name,years in the company,age", "Amy,Boris,Chen,Dana,Emil,Farah,Gus", (1, 20), (24, 63)),
    ("Exam results", "pupil,maths,history", "Ida,Jon,Kim,Leo,Mia,Noor,Otto", (40, 100), (40, 100)),
    ("Book stock", "title,copies,pages", "Dune Road,Cold Tea,Salt,The Gate,Ash,Ink", (0, 30), (90, 600)),
    ("Hiking routes", "route,length in km,climb in m", "Ridge,Lake,Mill,Gorge,Bay,Moor", (3, 28), (50, 1500)),
    ("Website visits", "page,visits,seconds on page", "home,shop,blog,help,jobs,about", (90, 9000), (5, 240)),
    ("Museums", "museum,visitors a day,price in euros", "Art,Toy,Coin,Glass,Ship,Car", (60, 3000), (3, 20)),
    ("Train times", "train,minutes late,passengers", "R12,R15,IC4,IC9,S1,S3,S7", (0, 55), (40, 700)),
]
TABLE_FORMS = """
{t}\\n\\nWhich {a} has the highest value of {b}? Which has the lowest? // {t}\\n\\nConvert this data to JSON.
// {t}\\n\\nList every {a} sorted by {c}, largest first. // Here is some data.\\n{t}\\n\\nName each {a} whose
{b} is above the average. // Extract the column "{c}" from the data below as a list.\\n\\n{t} // Given the
following data, identify the {a} with the largest {c} and write one sentence about it.\\n\\n{t}
"""
CODE_TASKS = """
checks whether a string is a palindrome, ignoring spaces and case // counts how often each word occurs in a
text // returns the n-th Fibonacci number without recursion // merges two sorted lists into one sorted list //
removes duplicates from a list and keeps the order // finds the longest common prefix of a list of strings //
converts a Roman numeral to an integer // reverses a singly linked list // checks whether the brackets in an
expression are balanced // computes the greatest common divisor of two numbers // implements a stack with
push, pop and peek // finds the second largest number in an array // rotates a square matrix by 90 degrees //
reads a CSV file and prints the sum of a column // validates an email address with a regular expression //
does a binary search in a sorted array // converts a temperature from Celsius to Fahrenheit // groups a list
of words by their first letter // generates all permutations of a string // computes the moving average of a
list of numbers // implements a least-recently-used cache // counts the vowels in a string // finds the
shortest path in a grid with breadth-first search // formats a number of seconds as hours, minutes and seconds
"""
CODE_LANGUAGES = "Python; JavaScript; Java; C++; Go; Rust; C#; TypeScript"
CODE_SPECIFIC = """
Write a SQL query that returns the five customers with the highest total of orders in 2023.
Write a SQL statement that creates a table for books with a title, an author, a year and a price.
Write a bash script that renames all .jpeg files in a folder to .jpg.
Write a bash one-liner that counts the lines of all Python files below the current folder.
Write a small HTML page with a heading, a paragraph and a list of three links.
Write CSS that centres a box in the middle of the page.
Write a regular expression that matches dates such as 2024-03-17 and explain it.
Explain what this Python code does:\\n\\nx = [i * i for i in range(10) if i % 2]\\nprint(sum(x))
Find the bug:\\n\\ndef mean(v):\\n    s = 0\\n    for x in v:\\n        s = x\\n    return s / len(v)
Find the error in this code:\\n\\nfor (let i = 0; i <= a.length; i++) {\\n  console.log(a[i].name);\\n}
Explain the difference between a list and a tuple in Python with examples.
Write unit tests in Python for a function add(a, b) that adds two numbers.
Write a Python class for a bank account with deposit, withdraw and balance.
Write a Python program that downloads a web page and prints its title.
Explain what a race condition is and show an example in Java.
Make this a list comprehension:\\nr = []\\nfor w in words:\\n    if len(w) > 3:\\n        r.append(w.upper())
Write a Dockerfile for a small Flask application.
Write a function in C that swaps two integers with pointers.
How do I read a JSON file in Python and change one value in it?
How do I undo the last commit in git without losing my changes?
"""
NAMES = """Alma Ben Clara David Elif Frank Hugo Ines Jack Karim Lucy Marta Nils Olga Peter Rosa"""
MATH = """
{n} buys {a} notebooks at {b} dollars each and pays with a {h}-dollar voucher and cash. How much cash is
needed? // A bus travels {d} km in {s} hours. What is its average speed in km per hour? // Solve for x: {s}x +
{a} = {d}. // Solve the equation {s}(x - {b}) = {c}x + {a}. // What is {p}% of {d}? // A bag holds {a} red and
{b} blue marbles. Two are drawn without replacement. What is the probability that both are red? // The sides
of a rectangle are {a} cm and {b} cm. Find its area and its perimeter. // {n} saves {a} dollars every week and
already has {d} dollars. After how many weeks will there be {e} dollars? // A shirt costs {d} dollars. Its
price falls by {p}% and then rises by {p}%. What is the final price? // {n} and {m} share {e} dollars in the
ratio {s}:{c}. How much does each of them get? // Find the roots of x^2 - {a}x + {b} = 0, or show that there
are none among the real numbers. // A tank holds {e} litres. A pump fills {a} litres a minute and a leak loses
{s} litres a minute. How long does it take to fill the empty tank? // What is the sum of the first {d}
positive integers? // A fair die is rolled {s} times. What is the probability that a six never appears? // The
mean of {s} numbers is {a}. When one more number is added, the mean becomes {b}. Which number was added? //
Differentiate f(x) = {s}x^3 - {a}x^2 + {b}x. // Evaluate the expression {a} * ({b} + {d}) - {e} / {s}, and
show each step. // A farm has {a} goats, twice as many hens and {b} fewer ducks than hens and goats together.
How many animals are there in all? // A recipe for {s} people needs {d} g of rice. How much rice is needed for
{a} people? // If f(x) = {s}x - {c} and g(x) = x^2 + {b}, what is f(g({c}))? // {n} is {a} years older than
{m}. In {s} years their ages will add up to {d}. How old are they now? // How many different ways are there to
choose {c} books from a shelf with {a} books? // Invest {e} dollars at {s}% interest a year. How much is it
worth after {c} years with compound interest?
"""
REASONING = """
{n} is taller than {m}, and {m} is taller than {o}. Who is the shortest? Explain your reasoning. // {n}, {m}
and {o} finished a race. {m} was not first, and {o} came directly after {n}. Who won? // If today is {day},
which day will it be in {k} days? // All {g} are {h}. Some {h} are heavy. Can we conclude that some {g} are
heavy? Explain. // {n} says that {m} always lies. {m} says that {o} tells the truth. {o} says that 2 + 2 = 5.
Who tells the truth? // What comes next in the sequence {k}, {k2}, {k3}, {k4}? Explain the rule. // Which word
does not belong with the others: {odd}? Give a reason. // {n} left a glass of ice in the sun on a hot {day}.
Describe what happens and why. // A shop is closed on {day}. {n} went there {k} days after {day} and found it
open. Is that consistent? Explain. // {n} has to cross a river with a {an}. The boat holds {k} kg. What should
be considered before the trip? // If it rains, the match is cancelled. The match was not cancelled on {day}.
Did it rain? Explain for {n}. // {n} sees wet streets on {day} morning and concludes that it rained. Name {c}
other explanations. // {n} has more coins than {m}. {m} has exactly {k} coins, twice as many as {o}. What is
the smallest number of coins that {n} can have? // There are {k} people at a party and everybody shakes hands
with everybody else once. How many handshakes are there? // A plant doubles in size every day and fills the
pond after {k} days. When did it fill half of the pond? // {n} must choose between a cheap flat far from work
and an expensive one nearby. Which points should {n} weigh? // Complete the analogy and explain it: {ana}
"""
ODD = """violin, flute, cello, harp; iron, copper, wood, zinc; Paris, Madrid, Milan, Lisbon;
square, circle, triangle, hexagon; hammer, saw, nail, drill; coffee, tea, cocoa, bread"""
ANALOGIES = """bird is to nest as bee is to ...; pen is to writer as brush is to ...; leaf is to tree as petal
is to ...; ship is to captain as orchestra is to ...; doctor is to hospital as judge is to ...; hour is to day
as month is to ...; eye is to see as ear is to ...; hot is to cold as early is to ..."""
SPOILT = re.compile(r"<unk>|[a-z]{4}[A-Z][a-z]|--|\|")  # marks of lost text or borders
DAYS = """Monday Tuesday Wednesday Thursday Friday Saturday Sunday"""
KINDS = """roses flowers glims tools boats machines ravens birds coins objects lamps things"""
ANIMALS = ["goat, a dog and a box", "horse and a cart", "bicycle and two bags", "sheep and a sack"]


def lines(text: str) -> list[str]:
    """Split a text at its double slashes or, if it has none, at its line ends.

    An indented line belongs to the one above it; a literal backslash-n is a line break.
    """
    text = re.sub(r"\n {2,}", " ", text)
    rows = " ".join(text.split()).split(" // ") if " // " in text else text.split("\n")
    return [row.strip().replace("\\n", "\n") for row in rows if row.strip()]


def items(text: str, sep: str = ";") -> list[str]:
    """Split a list at the separator and normalise white space."""
    return [" ".join(part.split()) for part in text.split(sep) if part.strip()]


def news() -> list[tuple[str, list[str]]]:
    """Return the news passages with their questions."""
    found = []
    for body, questions in re.findall(r"(.+?)\n\? (.+?)\n", NEWS, re.DOTALL):
        found.append((" ".join(body.split()), items(questions)))
    return found


def cross(rng: random.Random, forms: list[str], topics: list[str]) -> list[str]:
    """Return every form filled with every topic, in an order that visits all topics before repeating one."""
    out = []
    topics, forms = topics[:], forms[:]
    rng.shuffle(topics)
    rng.shuffle(forms)
    for turn in range(len(forms)):
        for index, topic in enumerate(topics):
            out.append(forms[(index + turn) % len(forms)].replace("{}", topic))
    return out


def make_qa(rng: random.Random) -> list[str]:
    """Return short factual questions, some in the lower case of a search box."""
    out = []
    for row in lines(QA):
        form, subjects = row.split(" | ")
        for subject in items(subjects):
            question = form.replace("{}", subject)
            style = rng.random()
            if style < 0.4:
                question = question[0].upper() + question[1:]
            elif style < 0.8:
                question = question.rstrip("?").lower()
            out.append(question)
    rng.shuffle(out)
    return out


def make_stem(rng: random.Random) -> list[str]:
    """Return questions about science and technology."""
    return cross(rng, lines(STEM_FORMS), items(STEM_TOPICS))


def make_humanities(rng: random.Random) -> list[str]:
    """Return questions about history, the arts and society."""
    return cross(rng, lines(HUM_FORMS), items(HUM_TOPICS))


def make_writing(rng: random.Random) -> list[str]:
    """Return writing tasks of three kinds, the single tasks first."""
    essays = cross(rng, lines(WRITING_ESSAY_FORMS), items(WRITING_ESSAYS))
    stories = cross(rng, lines(WRITING_STORY_FORMS), items(WRITING_STORIES))
    return lines(WRITING_TASKS) + [task for pair in zip(essays, stories) for task in pair]


def make_roleplay(rng: random.Random) -> list[str]:
    """Return role-play requests."""
    forms = ["You are {}. ", "Act as {}. ", "Pretend to be {}. ", "Please play {}. ", "Imagine you are {}. "]
    out = []
    for row in lines(ROLEPLAY):
        persona, *asks = row.split(" | ")
        out += [rng.choice(forms).format(persona) + ask for ask in asks]
    rng.shuffle(out)
    return out


def make_math(rng: random.Random) -> list[str]:
    """Return word problems and exercises with drawn numbers."""
    out = []
    for _ in range(8):
        for form in lines(MATH):
            n, m = rng.sample(NAMES.split(), 2)
            a, b = rng.sample(range(6, 30), 2)
            c, s = rng.randint(2, 4), rng.randint(5, 9)
            d, e = rng.choice(range(120, 400, 20)), rng.choice(range(600, 2400, 120))
            p, h = rng.choice([5, 10, 15, 20, 30, 35, 60]), rng.choice([5, 10, 20])
            out.append(form.format(n=n, m=m, a=a, b=b, c=c, s=s, d=d, e=e, p=p, h=h))
    return out


def make_reasoning(rng: random.Random) -> list[str]:
    """Return small puzzles and questions of judgement."""
    out = []
    for _ in range(8):
        for form in lines(REASONING):
            n, m, o = rng.sample(NAMES.split(), 3)
            k, step = rng.randint(4, 40), rng.randint(2, 9)
            ks = [k + step * i for i in range(4)] if rng.random() < 0.5 else [k * 2**i for i in range(4)]
            pair = 2 * rng.randrange(6)
            g, h = KINDS.split()[pair : pair + 2]
            day, an, c = rng.choice(DAYS.split()), rng.choice(ANIMALS), rng.randint(2, 4)
            odd, ana = rng.choice(items(ODD)), rng.choice(items(ANALOGIES))
            k = k * 2 if "twice" in form else k
            rest = {"k2": ks[1], "k3": ks[2], "k4": ks[3], "odd": odd, "ana": ana, "an": an}
            out.append(form.format(n=n, m=m, o=o, k=k, day=day, g=g, h=h, c=c, **rest))
    return out


def make_extraction(rng: random.Random) -> list[str]:
    """Return tasks over short texts and over drawn tables."""
    texts = cross(rng, lines(EXTRACT_TEXT_FORMS), lines(EXTRACT_TEXTS))[:34]
    tables = []
    for form in lines(TABLE_FORMS):
        for title, columns, keys, first, second in TABLES:
            a, b, c = columns.split(",")
            chosen = rng.sample(keys.split(","), rng.randint(4, 6))
            sep = rng.choice([", ", " | ", "; "])
            rows = [sep.join([key, str(rng.randint(*first)), str(rng.randint(*second))]) for key in chosen]
            table = "\n".join([title + ":", sep.join([a, b, c]), *rows])
            tables.append(form.format(t=table, a=a, b=b, c=c))
    rng.shuffle(tables)
    return texts + tables


def make_coding(rng: random.Random) -> list[str]:
    """Return coding tasks in several languages."""
    tasks = [f"Write a {{}} function that {task}." for task in lines(CODE_TASKS)]
    rng.shuffle(tasks)
    out = []
    for number, task in enumerate(tasks * 3):
        language = items(CODE_LANGUAGES)[(number + number // len(tasks)) % 8]
        out.append(task.format(language))
    return lines(CODE_SPECIFIC) + out


def make_translation(rng: random.Random) -> list[str]:
    """Return requests to translate from other languages and from German."""
    forms, out = lines(TRANSLATION_FORMS), []
    for row in lines(FOREIGN):
        language, sentence = row.split(" | ")
        form = rng.choice(["Translate {} to English: ", "Translate this {} sentence into English: "])
        out.append(form.format(language) + sentence)
    return out + [rng.choice(forms).replace("{}", text) for text in lines(GERMAN)]


def make_summaries(rng: random.Random) -> list[str]:
    """Return requests to summarise the news passages."""
    return cross(rng, lines(SUMMARY_FORMS), [text for text, _ in news()])


def rag_prompt(rng: random.Random, passages: list[str], question: str) -> str:
    """Put passages, in a drawn order, and a question into a request form."""
    passages = passages[:]
    rng.shuffle(passages)
    style = rng.choice(["Passage {}: ", "[{}] ", "Document {}\n"])
    block = "\n\n".join(style.format(number) + text for number, text in enumerate(passages, 1))
    return rng.choice(lines(RAG_FORMS)).replace("{q}", question).replace("{p}", block)


def make_rag(rng: random.Random) -> list[str]:
    """Return questions about one of three news passages."""
    stories, out = news(), []
    for index, (text, questions) in enumerate(stories):
        others = [other for number, (other, _) in enumerate(stories) if number != index]
        out += [rag_prompt(rng, [text, *rng.sample(others, 2)], question) for question in questions]
    rng.shuffle(out)
    return out


def read_xz(path: Path) -> str:
    """Read a compressed text file."""
    with lzma.open(path, "rt", encoding="utf-8") as stream:
        return stream.read()


def sentences(text: str) -> list[str]:
    """Split a text roughly into sentences."""
    text = " ".join(text.split())
    return re.split(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!Mr\.)(?<!Dr\.)(?<!Mrs\.)(?<!St\.)\s+(?=[A-Z\"'])", text)


def cut(text: str, low: int, high: int) -> list[str]:
    """Cut a text at sentence borders into passages of low to high words."""
    found: list[str] = []
    current: list[str] = []
    size = 0
    for sentence in sentences(text):
        count = len(sentence.split())
        if current and size + count > high:
            if size >= low:
                found.append(" ".join(current))
            current, size = [], 0
        current.append(sentence)
        size += count
    if low <= size <= high:
        found.append(" ".join(current))
    return [passage for passage in found if not SPOILT.search(passage) and passage[-1] in ".!?\"'"]


def untokenise(text: str) -> str:
    """Undo the word tokenisation of WikiText."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([,.;:?!)\]%])", r"\1", text)
    text = re.sub(r"([(\[$£]) ", r"\1", text)
    text = re.sub(r'" ([^"]*?) "', r'"\1"', text)
    return re.sub(r" ('(?:s|re|ve|ll|d|m|t)\b|n't\b)", r"\1", text)


def wiki_articles(data: Path) -> list[tuple[str, str]]:
    """Return (subject, text) of the encyclopedia articles of both sources."""
    found = []
    for row in read_xz(data / "corpus/wiki_demo.txt.xz").splitlines():
        text = re.sub(r" ?\([^a-zA-Z]*\)", "", row)
        text = re.sub(r"(?<=[a-z])([.!?])(?=[A-Z])", r"\1 ", text)
        pattern = r"(?:In [^,]{3,40}, )?(?:An? |The )?([^,(]{3,45}?)(?: \([^)]*\))?,? (?:is|was|are) "
        match = re.match(pattern, text)
        if match and match[1][0].isupper() and match[1] != "This":
            found.append((match[1].split(" or ")[0], text))
    parts = re.split(r"\n = ([^=\n]+) = \n", "\n" + read_xz(data / "corpus/wikitext-2_valid.txt.xz"))
    for title, body in zip(parts[1::2], parts[2::2]):
        body = " ".join(row for row in body.split("\n") if row.strip() and not row.strip().startswith("="))
        if "<unk>" not in title:
            found.append((untokenise(title), untokenise(body)))
    return found


def prose(data: Path) -> list[list[str]]:
    """Return the texts of each corpus other than the encyclopedia articles."""
    web = [json.loads(row)["text"] for row in read_xz(data / "corpus/c4_demo.jsonl.xz").splitlines()]
    speeches = []
    with zipfile.ZipFile(data / "corpus/nltk_state_union.zip") as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".txt"):
                text = archive.read(name).decode("latin-1").split("\n\n", 1)[-1]
                if text.isascii():
                    speeches.append(text)
    novel = read_xz(data / "corpus/en_botchan.txt.xz")
    novel = novel[: novel.index("(THE END)")]
    chapters = [novel[start : start + 9000] for start in range(6000, len(novel), 9000)]
    return [web, speeches, [chapter.partition(". ")[2] for chapter in chapters]]


def data_summaries(rng: random.Random, data: Path) -> list[str]:
    """Return requests to summarise passages of the corpora, taken in turn from each corpus."""
    pools = []
    for texts in [[text for _, text in wiki_articles(data)], *prose(data)]:
        pool = []
        for text in texts:
            low = rng.choice([150, 150, 200, 250])
            passages = cut(text, low, low + 150)
            pool += rng.sample(passages, min(3, len(passages)))
        rng.shuffle(pool)
        pools.append(pool)
    forms, out = lines(SUMMARY_FORMS), []
    for _ in range(max(map(len, pools))):
        for pool in pools[:2] * 2 + pools[2:]:
            if pool:
                out.append(rng.choice(forms).replace("{}", pool.pop()))
    return out


def data_rag(rng: random.Random, data: Path) -> list[str]:
    """Return questions about one of three passages of the corpora."""
    cuts = [(subject, cut(text, 60, 120)) for subject, text in wiki_articles(data)]
    cuts = [(subject, passages) for subject, passages in cuts if passages]
    web = [passage for text in prose(data)[0] for passage in cut(text, 60, 120)[:1]]
    out = []
    for _ in range(9):
        for subject, passages in cuts:
            if not passages:
                continue
            passage = passages.pop(0 if rng.random() < 0.5 else rng.randrange(len(passages)))
            other = rng.choice([chosen for name, chosen in cuts if name != subject and chosen])
            question = rng.choice(lines(RAG_QUESTIONS)).replace("{}", subject)
            out.append(rag_prompt(rng, [passage, rng.choice(other), rng.choice(web)], question))
    return out


def data_translation(rng: random.Random, data: Path) -> list[str]:
    """Return requests to translate sentences of the German declaration of human rights."""
    with zipfile.ZipFile(data / "corpus/nltk_udhr2.zip") as archive:
        text = archive.read("udhr2/deu.txt").decode("utf-8")
    found = []
    for row in text.splitlines()[4:]:
        row = re.sub(r"^\s*\d+\.\s*", "", row).strip()
        found += [s for s in re.split(r"(?<=\.)\s+", row) if 4 <= len(s.split()) <= 45 and s[0].isupper()]
    rng.shuffle(found)
    forms = lines(TRANSLATION_FORMS)
    return [rng.choice(forms).replace("{}", text) for text in found if text.endswith(".")]


def data_coding(rng: random.Random, data: Path) -> list[str]:
    """Return coding tasks of the training split of MBPP and of a set of code instructions."""
    basic = []
    for row in (data / "chat/mbpp.jsonl").read_text(encoding="utf-8").splitlines():
        task = json.loads(row)
        if 601 <= task["task_id"] <= 974:
            basic.append(task["text"].strip())
    mixed = []
    for row in json.loads(read_xz(data / "chat/gpteacher_codegen-instruct.json.xz"))[-300:]:
        prompt = (row["instruction"] + "\n\n" + row["input"]).strip()
        if len(prompt.split()) < 200:
            mixed.append(prompt)
    return rng.sample(basic, 30) + rng.sample(mixed, 30)


# Category: maker, number without data, number with data, maker from data, own prompts that stay with data.
OWN = {
    "qa": (make_qa, 260, 260, None, 0),
    "summarization": (make_summaries, 36, 220, data_summaries, 28),
    "rag": (make_rag, 36, 160, data_rag, 36),
    "translation": (make_translation, 142, 200, data_translation, 142),
    "writing": (make_writing, 130, 130, None, 0),
    "roleplay": (make_roleplay, 60, 60, None, 0),
    "reasoning": (make_reasoning, 80, 80, None, 0),
    "math": (make_math, 90, 90, None, 0),
    "coding": (make_coding, 92, 110, data_coding, 50),
    "extraction": (make_extraction, 70, 70, None, 0),
    "stem": (make_stem, 110, 110, None, 0),
    "humanities": (make_humanities, 110, 110, None, 0),
}


def build(seed: int, data: Path | None) -> list[dict]:
    """Return the shuffled records."""
    seen, records = set(), []
    for category, (maker, limit, data_limit, data_maker, kept) in OWN.items():
        rng = random.Random(f"{seed} {category}")
        target = data_limit if data else limit
        pool = maker(rng)
        if data and data_maker:
            pool = pool[:kept] + data_maker(rng, data) + pool[kept:]
        taken = 0
        for prompt in pool:
            key = " ".join(prompt.lower().split())
            if key in seen or taken == target:
                continue
            seen.add(key)
            taken += 1
            records.append({"messages": [{"role": "user", "content": prompt}], "category": category})
    random.Random(f"{seed} order").shuffle(records)
    return records


def main() -> None:
    """Write the prompts and print their number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the development data (corpora)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    records = build(args.seed, args.data)
    with open(args.output, "w", encoding="utf-8", newline="\n") as stream:
        for record in records:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    words = [len(record["messages"][0]["content"].split()) for record in records]
    sys.stdout.write(f"prompts: {len(words)}, mean words: {sum(words) / len(words):.1f}\n")


if __name__ == "__main__":
    main()
